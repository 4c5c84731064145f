"""The scripted sampler: deterministic answers, and where scripts come from."""

import json
from pathlib import Path

import pytest

from drkernel_q.errors import BadModel, PromptTooLong
from drkernel_q.kernel import extract_kernel
from drkernel_q.prompt import first_turn, load_templates
from drkernel_q.trajectory import Message
from policy.sampler.protocol import Sampling
from policy.sampler.scripted import ScriptedSampler, read_script
from tests.prompts import PROBLEM

ASKED = (Message(role="user", content="Go."),)


async def told(sampler: ScriptedSampler, *answers: str, seed: int | None = None) -> str:
    chat = ASKED + tuple(Message(role="assistant", content=answer) for answer in answers)
    return (await sampler.sample(sampler.encode(chat), Sampling(seed=seed))).text


async def test_a_list_answers_turn_by_turn_and_the_last_one_stays() -> None:
    sampler = ScriptedSampler(["one", "two"])
    assert [await told(sampler), await told(sampler, "one"), await told(sampler, "one", "two")] == ["one", "two", "two"]


async def test_bytes_are_tokens_whatever_they_are() -> None:
    sampler = ScriptedSampler(["é\x00\ud800"])
    sample = await sampler.sample(sampler.encode(ASKED), Sampling())
    assert sample.text == "é\x00?"
    assert len(sample.output_ids) == len(sample.logprobs) == 5
    half = await sampler.sample(sampler.encode(ASKED), Sampling(max_new_tokens=1))
    assert (half.text, half.finish_reason) == ("\ufffd", "length")
    with pytest.raises(PromptTooLong):
        await ScriptedSampler(["x"], context_tokens=20).sample(sampler.encode(ASKED), Sampling(max_new_tokens=4))


async def test_scripts_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(["one", "two"]))
    (tmp_path / "a.md").write_text("all\n")
    (tmp_path / "a.py").write_text("def answer(prompt, sampling):\n    return str(sampling.seed)\n")
    texts = [
        await told(ScriptedSampler(read_script(str(tmp_path / name))), seed=5) for name in ("a.json", "a.md", "a.py")
    ]
    assert texts == ["one", "all\n", "5"]


@pytest.mark.parametrize("name", ["default", "compact"])
async def test_the_copy_is_the_reference_renamed(name: str) -> None:
    sampler = ScriptedSampler(read_script("copy"))
    sample = await sampler.sample(sampler.encode(first_turn(PROBLEM, load_templates(name))), Sampling())
    kernel = extract_kernel(sample.text)
    assert kernel is not None
    assert kernel.source == PROBLEM.source.replace("Model(", "ModelNew(")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("a.json", "{}", "must hold a list"),
        ("a.json", "[]", "must hold a list"),
        ("a.json", "[1]", "must hold a list"),
        ("a.json", "[", "no script at"),
        ("a.py", "answer = 3", "no function `answer`"),
        ("missing.py", None, "no script at"),
        ("missing.txt", None, "no script at"),
    ],
)
def test_what_is_no_script(tmp_path: Path, file: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(BadModel, match=said):
        read_script(str(tmp_path / file))
