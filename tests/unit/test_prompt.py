"""Prompts: they read as approved, keep quiet about detectors, and can be replaced by a folder."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.errors import BadSettings
from drkernel_q.evaluation import Outcome
from drkernel_q.feedback import REJECTED
from drkernel_q.kernel import extract_kernel
from drkernel_q.problem import Problem
from drkernel_q.prompt import FOLDER, builtin_templates, feedback_turn, fenced, first_turn, load_templates
from drkernel_q.trajectory import Message
from tests.judging import Bench
from tests.prompts import FOLDER as APPROVED
from tests.prompts import PROBLEM, TURNS, a_turn, rendered
from tests.values import an_evaluation

TEXTS = rendered()


@pytest.mark.parametrize("file", TEXTS)
def test_prompt_reads_as_approved(file: str) -> None:
    assert TEXTS[file] + "\n" == (APPROVED / file).read_text()


def test_nothing_is_approved_that_is_not_written() -> None:
    assert sorted(path.name for path in APPROVED.iterdir()) == sorted(TEXTS)


@pytest.mark.parametrize("name", builtin_templates())
def test_a_rejected_kernel_is_told_nothing_but_that(name: str) -> None:
    told = {
        feedback_turn(a_turn(evaluation=an_evaluation(outcome, "rejected", error="A7: a decoy")), load_templates(name))
        for outcome in Outcome
    }
    assert len(told) == 1
    assert REJECTED in told.pop().content


@pytest.mark.parametrize("name", builtin_templates())
@pytest.mark.parametrize("case", TURNS)
def test_a_prompt_has_no_seams(name: str, case: str) -> None:
    text = feedback_turn(TURNS[case], load_templates(name)).content
    assert text == text.strip()
    assert "\n\n\n" not in text
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)


@pytest.mark.slow
def test_the_worked_example_is_right(bench: Bench) -> None:
    parts = FOLDER / "default"
    # At the sizes shown the interpreter would take minutes.
    reference = (parts / "example_reference.j2").read_text().replace("1024, 4096", "8, 100").replace("4096", "100")
    problem = Problem(name="example", source=reference)
    evaluation = bench.judge(problem, (parts / "example_kernel.j2").read_text())
    assert evaluation.outcome is Outcome.CORRECT
    # All of the work; on this device making a tensor takes time too.
    assert evaluation.profile_ratio is not None
    assert evaluation.profile_ratio > 0.5


def test_the_worked_example_is_an_answer() -> None:
    shown = first_turn(PROBLEM, load_templates())[-1].content
    kernel = extract_kernel(shown)
    assert kernel is not None
    assert kernel.source == (FOLDER / "default" / "example_kernel.j2").read_text()


@given(st.text(st.sampled_from("`~ab\n \t"), max_size=30), st.sampled_from(["python", ""]))
def test_a_fenced_block_ends_where_it_should(text: str, language: str) -> None:
    opening, *inside, closing = fenced(text, language).split("\n")
    assert opening == closing + language
    assert "\n".join(inside) == text.rstrip()
    assert not any(line.strip().startswith(closing) for line in inside)


@pytest.fixture
def own_set(tmp_path: Path) -> Path:
    (tmp_path / "first.j2").write_text("Rewrite {{ problem.name }}.\n")
    (tmp_path / "feedback.j2").write_text('{% include "compact/feedback.j2" %}')
    return tmp_path


def test_a_folder_takes_the_place_of_a_set(own_set: Path) -> None:
    (own_set / "system.j2").write_text("You write kernels.\n")
    templates = load_templates(own_set)
    assert first_turn(PROBLEM, templates) == (
        Message(role="system", content="You write kernels."),
        Message(role="user", content="Rewrite double."),
    )
    assert feedback_turn(TURNS["correct"], templates) == feedback_turn(TURNS["correct"], load_templates("compact"))


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("first.j2", "{{ problem.nmae }}", "nmae"),
        ("first.j2", "{{ problme.name }}", "problme"),
        ("first.j2", "{% if %}", "is wrong"),
        ("first.j2", "{{ problem.name | shout }}", "shout"),
        ("first.j2", '{% include "nowhere.j2" %}', "nowhere.j2"),
    ],
)
def test_a_template_that_is_wrong_is_named(own_set: Path, file: str, text: str, said: str) -> None:
    (own_set / file).write_text(text)
    with pytest.raises(BadSettings, match=said) as raised:
        first_turn(PROBLEM, load_templates(own_set))
    assert "first" in str(raised.value)


def test_a_set_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"`defualt`; there are brief, compact, default"):
        load_templates("defualt")
    with pytest.raises(BadSettings, match=r"it has no first\.j2"):
        load_templates(tmp_path)
