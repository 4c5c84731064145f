"""Kernels from completions: which block is taken, and that no text is too odd."""

import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drkernel_q.kernel import Kernel, extract_kernel

MODEL = "class ModelNew:\n    pass\n"
OTHER = "class ModelNew:\n    other = True\n"


def fenced(source: str, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{source}{fence}\n"


def source(completion: str) -> str | None:
    kernel = extract_kernel(completion)
    return None if kernel is None else kernel.source


@pytest.mark.parametrize(
    ("completion", "taken"),
    [
        (f"Here:\n{fenced(MODEL)}Done.", MODEL),
        (fenced(MODEL) + fenced(OTHER), OTHER),
        (fenced(MODEL) + fenced("print(1)\n"), MODEL),
        (fenced(MODEL) + fenced(OTHER, ""), MODEL),
        (fenced(MODEL) + fenced(OTHER, "text"), MODEL),
        (fenced(MODEL, "Python"), MODEL),
        (fenced(MODEL, "py"), MODEL),
        (fenced(MODEL, 'python title="kernel.py"'), MODEL),
        (fenced(MODEL, ""), MODEL),
        (fenced(MODEL, fence="~~~"), MODEL),
        (fenced(MODEL + "# ```\n", fence="````"), MODEL + "# ```\n"),
        (fenced(MODEL) + f"```python\n{OTHER}", MODEL),
        (f"```python\n{OTHER}", OTHER),
        (f"```python\n{OTHER}    def forward(", None),
        (MODEL, MODEL),
        (f"import torch\n{MODEL}", f"import torch\n{MODEL}"),
        (f"I would write\n{MODEL}", None),
        (fenced("ModelNew = build()\n"), "ModelNew = build()\n"),
        (fenced("class ModelNewer:\n    pass\n"), None),
        (fenced("x = 'class ModelNew'\n"), None),
        (f"<think>{fenced(OTHER)}</think>{fenced(MODEL)}", MODEL),
        (f"{fenced(OTHER)}</think>{fenced(MODEL)}", MODEL),
        (f"{fenced(MODEL)}<think>{fenced(OTHER)}", MODEL),
        (f"<think>\n{fenced(OTHER)}", None),
        ("", None),
        ("```", None),
        (fenced("class ModelNew:\n  \x00\n"), "class ModelNew:\n  \x00\n"),
    ],
)
def test_block_that_is_taken(completion: str, taken: str | None) -> None:
    assert source(completion) == taken


def test_kernel_has_the_name_it_is_given() -> None:
    assert extract_kernel(fenced(MODEL), name="2.1") == Kernel(source=MODEL, name="2.1")


pieces = st.lists(
    st.sampled_from(
        ["```", "```python\n", "````\n", "~~~\n", "<think>", "</think>", MODEL, "\n", "\r", "\x00", "\ud800"]
    )
    | st.text(st.characters(exclude_categories=()), max_size=8),
    max_size=12,
).map("".join)


@given(pieces)
@example("(" * 10_000 + MODEL)
@example("-" * 100_000 + f"\n{MODEL}")
def test_no_text_is_too_odd(completion: str) -> None:
    kernel = extract_kernel(completion)
    assert kernel is None or ("ModelNew" in kernel.source and kernel.source in completion)


@given(
    before=pieces,
    source=st.text(st.characters(exclude_characters="`~\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=40),
)
def test_a_last_python_block_wins_whatever_came_before(before: str, source: str) -> None:
    text = MODEL + source.rstrip() + "\n"
    # An open fence before it would make the block part of another one.
    if extract_kernel(before) is None and "```" not in before and "~~~" not in before and "<think>" not in text:
        kernel = extract_kernel(f"{before.replace('<think>', '')}\n{fenced(text)}{textwrap.dedent('That is it.')}")
        assert kernel is not None
        assert kernel.source == text
