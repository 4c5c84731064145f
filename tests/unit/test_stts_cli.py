"""`drkq stts` before anything is started, and the board of turns."""

import io
import sys

import pytest
from click.testing import CliRunner

from drkernel_q.cli import drkq
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.trajectory import Turn
from policy.cli.board import board, cells
from policy.search.budget import Budget, Limits, Tokens
from policy.search.scaling import Step
from tests.values import an_evaluation


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("softmax",), 2, "Missing option '--model'"),
        (("softmaxx", "--model", "scripted:copy"), 65, "did you mean `softmax`?"),
        (("softmax", "--model", "scripted:nothing.json"), 65, "There is no script at nothing.json"),
        (("softmax", "--model", "scripted:copy", "--span", "3"), 78, "no room for 4 and a new one"),
        (("softmax", "--model", "scripted:copy", "--max-cost", "1"), 78, "needs prices"),
    ],
)
def test_what_cannot_be_is_a_sentence(words: tuple[str, ...], code: int, sentence: str) -> None:
    result = CliRunner().invoke(drkq, ["stts", *words])
    assert result.exit_code == code
    assert sentence in result.stderr


def a_step(evaluation: Evaluation | None, *, kernel: bool = True, reward: float | None = 1.0) -> Step:
    source = Kernel(source="k") if kernel else None
    turn = Turn(number=3, prompt=(), completion="", kernel=source, evaluation=evaluation)
    return Step(1, turn, reward, 2.5, (1, 2), Tokens(900, 80), resumed=False)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (a_step(an_evaluation(speedup=1.5, profile_ratio=0.86)), "correct   1.50x [1.35, 1.65]   86%   reward 1.00"),
        (a_step(an_evaluation("correct", "rejected"), reward=0.0), "correct, rejected   -   -   reward 0.00"),
        (a_step(None, kernel=False, reward=0.0), "no kernel   -   -   reward 0.00"),
        (a_step(None, reward=None), "not judged   -   -   -"),
    ],
)
def test_a_step_in_a_line(step: Step, expected: str) -> None:
    assert "   ".join(cells("softmax", step)) == (
        f"softmax   1   turn 3   {expected}   best 2.50   900 tokens of turns 1, 2   80 tokens"
    )


def test_on_a_terminal_the_board_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    budget = Budget(Limits())
    with board(budget) as told:
        for _ in range(30):
            told("softmax", a_step(an_evaluation(speedup=1.5)))
        budget.book(Tokens(900, 80))
    shown = terminal.getvalue()
    assert "own time" in shown
    assert "30 turns, 980 tokens" in shown
