"""Audits of problems written for it, by the worker's own path on the cpu device."""

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from drkernel_q.audit import Audit, Sensitivity
from drkernel_q.problem import Problem
from tests.judging import EXAMPLES, Bench, builtin

pytestmark = pytest.mark.slow

HEAD = "import os, random, signal, time\nimport torch\nimport torch.nn as nn\n"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("cpu", memory_bytes=2 * 2**30)
    bench.evaluator.wait_ready()
    yield bench
    bench.close()


def problem(forward: str, init: str = "", inputs: str = "torch.randn(16, 32)") -> Problem:
    """A problem with these lines in its forward pass and constructor, and these inputs."""
    body = textwrap.indent(f"super().__init__()\n{init}", " " * 8)
    model = f"class Model(nn.Module):\n    def __init__(self):\n{body}\n\n"
    calls = textwrap.indent(forward, " " * 4)
    return Problem(name="trial", source=f"{HEAD}{model}{calls}\n\ndef get_inputs():\n    return [{inputs}]\n")


def audited(bench: Bench, problem: Problem, **options: Any) -> Audit:
    audit = bench.audit(problem, **options)
    assert isinstance(audit, Audit), audit
    return audit


def codes(audit: Audit) -> list[str]:
    return [flag.code.value for flag in audit.flags]


def tensor(audit: Audit, name: str) -> Sensitivity:
    return next(each for each in audit.sensitivities if each.name == name)


def test_an_honest_problem_has_facts_and_no_flag(bench: Bench) -> None:
    audit = audited(
        bench, problem("def forward(self, x):\n    return self.linear(x)", "self.linear = nn.Linear(32, 8)")
    )
    assert (codes(audit), audit.gaps, audit.unusable) == ([], {}, None)
    assert audit.speed_rewarded
    assert audit.reference_ms is not None
    assert audit.relative_l2 is not None
    assert 0 < audit.relative_l2 < 1e-6
    assert (audit.finite, audit.deterministic, audit.random, audit.train_differs) == (True, True, False, False)
    assert audit.flops == 2 * 16 * 32 * 8
    assert audit.output_bytes == 16 * 8 * 4
    assert audit.bytes_least == 4 * (16 * 32 + 32 * 8 + 8 + 16 * 8)
    for name, kind in (("input 0", "input"), ("linear.weight", "parameter"), ("linear.bias", "parameter")):
        seen = tensor(audit, name)
        assert (seen.kind, seen.constant, seen.redraw, seen.scale, seen.element) == (kind, False, True, True, True)
        assert seen.read_share == 1.0
    assert (tensor(audit, "linear.weight").row, tensor(audit, "linear.bias").row) == (True, None)


TWO_INPUTS = "torch.randn(16, 32), torch.randn(16, 32)"
FLAWED: dict[str, tuple[Problem, list[str]]] = {
    "zeros": (
        problem("def forward(self, x):\n    return 0 * x"),
        ["degenerate", "constant_output", "input_insensitive"],
    ),
    "a mean that any input has": (
        problem("def forward(self, x):\n    return (100 + 1e-7 * x).mean(dim=1)"),
        ["constant_output", "input_insensitive"],
    ),
    "a loss that any input has": (
        problem("def forward(self, x):\n    return 5 + 1e-9 * x.mean()"),
        ["constant_output", "input_insensitive"],
    ),
    "the same inputs under every seed": (
        problem(
            "def forward(self, x):\n    return x.cumsum(0)",
            inputs="torch.ones(4, 8)",
        ),
        ["constant_output"],
    ),
    "an input that is not looked at": (
        problem("def forward(self, x, y):\n    return x.exp() + 0 * y", inputs=TWO_INPUTS),
        ["input_insensitive"],
    ),
    "a bias that a normalization takes away": (
        problem(
            "def forward(self, x):\n    return nn.functional.layer_norm(self.linear(x) + self.shift, (8,))",
            "self.linear = nn.Linear(32, 8)\nself.shift = nn.Parameter(torch.randn(1))",
        ),
        ["weight_insensitive"],
    ),
    "weights that are always the same": (
        problem("def forward(self, x):\n    return self.norm(x)", "self.norm = nn.LayerNorm(32)"),
        ["weight_constant"],
    ),
    "dropout": (
        problem("def forward(self, x):\n    return nn.functional.dropout(x, 0.5, self.training)"),
        ["train_eval_differ"],
    ),
    "random numbers": (problem("def forward(self, x):\n    return x + 0.01 * torch.rand_like(x)"), ["random_forward"]),
    "random numbers of Python": (problem("def forward(self, x):\n    return x * random.random()"), ["random_forward"]),
    "another result each time": (
        problem("def forward(self, x):\n    self.calls += 1\n    return x * self.calls", "self.calls = 0"),
        ["random_forward", "nondeterministic"],
    ),
    "NaN": (problem("def forward(self, x):\n    return x.log()"), ["not_finite"]),
    "no fp64": (
        problem("def forward(self, x):\n    return x @ self.fixed", "self.fixed = torch.randn(32, 8)"),
        ["fp64_unavailable"],
    ),
}


@pytest.mark.parametrize("name", FLAWED)
def test_a_flaw_is_found(bench: Bench, name: str) -> None:
    flawed, expected = FLAWED[name]
    audit = audited(bench, flawed)
    assert codes(audit) == expected, audit
    assert audit.unusable is None


UNUSABLE: dict[str, tuple[Problem, str]] = {
    "no module": (
        Problem(name="trial", source="import nothing_of_the_kind"),
        "cannot be executed: ModuleNotFoundError",
    ),
    "raises": (problem("def forward(self, x):\n    raise ValueError('no')"), "raises ValueError: no"),
    "dies": (
        problem("def forward(self, x):\n    os.kill(os.getpid(), signal.SIGSEGV)"),
        "The process of the audit died.",
    ),
    "hangs": (problem("def forward(self, x):\n    time.sleep(1000)"), "No answer within 3 s."),
    "fills the memory": (problem("def forward(self, x):\n    return torch.zeros(2**30, 4)"), "can't allocate memory"),
    "other inputs under the same seed": (
        problem(
            "def forward(self, x):\n    return x",
            inputs="torch.ones(4) * (time.time_ns() % 10007)",
        ),
        "draws other values under the same torch seed",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_problem_that_cannot_be_used_says_why_and_hurts_nobody(bench: Bench, name: str) -> None:
    unusable, reason = UNUSABLE[name]
    audit = audited(bench, unusable, deadline_s=3.0)
    assert codes(audit) == ["unusable"]
    assert reason in audit.flags[0].detail
    assert codes(audited(bench, problem("def forward(self, x):\n    return x.exp()"))) == []


@pytest.mark.parametrize(
    ("last", "why"), [("time.sleep(1000)", "No answer within 3 s."), ("os._exit(1)", "The process of the audit died.")]
)
def test_what_comes_after_a_good_beginning_is_a_gap(bench: Bench, last: str, why: str) -> None:
    forward = f"def forward(self, x):\n    if self.training:\n        {last}\n    return x.exp()"
    audit = audited(bench, problem(forward), deadline_s=3.0)
    assert (codes(audit), audit.gaps) == ([], {"switch_mode": why})
    assert audit.zeros_pass is False


def test_bytes_that_are_not_read_are_not_counted(bench: Bench) -> None:
    """An embedding reads a few rows of its table; a triangular matrix is half zeros, which a kernel may know."""
    lookup = audited(
        bench,
        problem(
            "def forward(self, x):\n    return self.table(x)",
            "self.table = nn.Embedding(100000, 4)",
            "torch.randint(100000, (8,))",
        ),
    )
    assert tensor(lookup, "table.weight").redraw
    assert tensor(lookup, "table.weight").read_share == 0.0
    assert lookup.bytes_least == 8 * 8 + 8 * 4 * 4
    triangle = "torch.tril(torch.randn(64, 64))"
    product = audited(bench, problem("def forward(self, x):\n    return x @ x", inputs=triangle))
    assert tensor(product, "input 0").nonzero_share == pytest.approx(65 / 128)
    assert codes(product) == []


def test_inputs_that_are_written_to_are_drawn_for_each_call(bench: Bench) -> None:
    audit = audited(bench, problem("def forward(self, x):\n    return x.mul_(2).exp()"))
    assert audit.changes_inputs
    assert codes(audit) == []


def test_the_device_is_free_for_a_judge_after_an_audit(bench: Bench) -> None:
    assert codes(audited(bench, builtin("softmax"))) == []
    evaluation = bench.judge(builtin("softmax"), (EXAMPLES / "softmax.py").read_text(), trials=1, timing_budget_s=0.1)
    assert evaluation.honest_and_correct
    assert codes(audited(bench, builtin("rotary_embedding"))) == ["weight_constant"]
