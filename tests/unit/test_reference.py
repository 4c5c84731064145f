"""The reference side: what a problem may do, and how it is told what it may not."""

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Baseline, Outcome
from drkernel_q.problem import Problem, builtin_files, load_problem
from workers.comparison.correctness import compare
from workers.comparison.reference import NEARBY_ROUNDINGS, NEARBY_RUNS, Reference
from workers.exchange.integrity import same_bits
from workers.judging.trial import check_inputs

LINEAR = """
    import torch, torch.nn as nn
    class Model(nn.Module):
        def __init__(self, width=6):
            super().__init__()
            self.linear = nn.Linear(width, 5)
        def forward(self, x):
            return self.linear(x)
    def get_inputs():
        return [torch.randn(4, 6)]
    def get_init_inputs():
        return [6]
"""


@pytest.fixture(autouse=True)
def own_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def reference(source: str, *, train: bool = False, build: bool = True) -> Reference:
    made = Reference(Problem(name="trial", source=textwrap.dedent(source)), "cpu", train=train)
    if build:
        made.build(1)
    return made


def model(forward: str, *, inputs: str = "[torch.randn(4, 6)]", init: str = "") -> str:
    """Source of a problem with this forward pass and these inputs."""
    return f"""
    import random, numpy as np, torch, torch.nn as nn
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            {init or "pass"}
        def forward(self, *x):
            {forward}
    def get_inputs():
        return {inputs}
"""


def test_one_seed_makes_one_model_and_one_set_of_inputs() -> None:
    made = reference(LINEAR)
    first = {name: value.clone() for name, value in made.model.state_dict().items()}
    made.build(2)
    other = made.model.state_dict()
    made.build(1)
    again = made.model.state_dict()
    assert all(same_bits(first[name], again[name]) for name in first)
    assert not any(same_bits(first[name], other[name]) for name in first)
    assert same_bits(made.inputs(7)[0], made.inputs(7)[0])
    assert not same_bits(made.inputs(7)[0], made.inputs(8)[0])
    check_inputs(made)


def test_python_and_numpy_draw_by_the_seed_too() -> None:
    made = reference(model("return x[0]", inputs="[torch.randn(2), random.random(), float(np.random.rand())]"))
    first, again, other = made.inputs(3), made.inputs(3), made.inputs(2**62 + 5)
    assert first[1:] == again[1:]
    assert first[1] != other[1]
    assert first[2] != other[2]
    check_inputs(made)


def test_the_model_is_in_the_mode_that_is_judged() -> None:
    assert not reference(LINEAR).model.training
    assert reference(LINEAR, train=True).model.training


def test_expected_outputs_come_in_both_precisions() -> None:
    made = reference(LINEAR)
    inputs = made.inputs(1)
    expected = made.expected(inputs)
    (working,), (exact,) = expected.working, expected.exact
    assert exact is not None
    assert (working.dtype, exact.dtype) == (torch.float32, torch.float64)
    assert torch.allclose(working.double(), exact, atol=1e-5)
    assert not torch.equal(working.double(), exact)
    assert expected.reduction == 6
    assert made.model.linear.weight.dtype is torch.float32  # type: ignore[union-attr]
    assert compare(expected, [working]).outcome is Outcome.CORRECT


def test_fp64_follows_the_weights_of_the_model_at_hand() -> None:
    made = reference(LINEAR)
    inputs = made.inputs(1)
    made.expected(inputs)
    made.build(2)
    expected = made.expected(inputs)
    assert expected.exact[0] is not None
    assert torch.allclose(expected.working[0].double(), expected.exact[0], atol=1e-5)


BATCH_NORM = model("return self.norm(x[0])", inputs="[torch.randn(8, 6) + 3]", init="self.norm = nn.BatchNorm1d(6)")


def test_a_training_pass_leaves_the_state_as_it_was() -> None:
    made = reference(BATCH_NORM, train=True)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    inputs = made.inputs(1)
    first, second = made.expected(inputs), made.expected(inputs)
    assert all(same_bits(before[name], value) for name, value in made.model.state_dict().items())
    assert same_bits(first.working[0], second.working[0])
    assert first.exact[0] is not None
    assert second.exact[0] is not None
    assert torch.allclose(first.working[0].double(), first.exact[0], atol=1e-5)
    assert same_bits(first.exact[0], second.exact[0])


def test_every_training_pass_begins_with_the_same_state() -> None:
    steps = "self.register_buffer('steps', torch.zeros(1))"
    made = reference(model("self.steps += 1; return x[0] * self.steps", init=steps), train=True)
    inputs = made.inputs(1)
    for _ in range(2):
        expected = made.expected(inputs)
        assert expected.exact[0] is not None
        assert torch.equal(expected.working[0], inputs[0])
        assert torch.equal(expected.exact[0], inputs[0].double())


def test_inputs_are_not_changed_and_a_change_is_noticed() -> None:
    made = reference(model("return x[0].relu_()"))
    inputs = made.inputs(1)
    kept = inputs[0].clone()
    expected = made.expected(inputs)
    assert same_bits(inputs[0], kept)
    assert made.changes_inputs
    assert "A11" in made.own_codes, "its output is its input"
    assert torch.equal(expected.working[0], kept.relu())
    assert expected.exact[0] is not None
    assert torch.equal(expected.exact[0], kept.relu().double())
    other = reference(model("return x[0].relu()"))
    other.expected(other.inputs(1))
    assert not other.changes_inputs
    assert not other.own_codes


def test_views_of_inputs_are_the_references_right() -> None:
    made = reference(model("return x[0].t(), x[0][:2]"))
    made.expected(made.inputs(1))
    assert {"A11", "B7"} <= made.own_codes


def test_integers_booleans_and_nested_outputs() -> None:
    made = reference(model("return {'index': x[0].argmax(-1), 'rest': [x[0] > 0, (x[0] * 2, 3)]}"))
    expected = made.expected(made.inputs(1))
    assert [value.dtype for value in expected.working] == [torch.int64, torch.bool, torch.float32]
    assert [value is not None and value.dtype for value in expected.exact] == [torch.int64, torch.bool, torch.float64]
    assert compare(expected, [value.clone() for value in expected.working]).outcome is Outcome.CORRECT
    wrong = [expected.working[0], ~expected.working[1], expected.working[2]]
    assert str(compare(expected, wrong).detail).startswith("output 1: ")


def test_nested_inputs_arrive_nested() -> None:
    made = reference(
        model(
            "return x[0]['a'] @ x[1][0] * x[2]",
            inputs="[{'a': torch.randn(4, 6)}, [torch.randn(6, 3), torch.randn(1)], 2.5, None, True, 'text']",
        )
    )
    expected = made.expected(made.inputs(1))
    assert expected.exact[0] is not None
    assert torch.allclose(expected.working[0].double(), expected.exact[0], atol=1e-4)


@pytest.mark.parametrize(
    "forward",
    [
        "return x[0] @ torch.ones(6, 3, dtype=torch.float32)",
        "assert x[0].dtype is torch.float32; return x[0]",
        "return {torch.float32: x[0]}[x[0].dtype]",
        "return (x[0], x[0]) if x[0].dtype is torch.float32 else x[0]",
    ],
    ids=["fixed dtype", "assertion", "table", "other structure"],
)
def test_a_reference_that_cannot_be_run_in_fp64_is_its_own_measure(forward: str) -> None:
    made = reference(model(forward))
    expected = made.expected(made.inputs(1))
    assert set(expected.exact) == {None}
    assert compare(expected, [value.clone() for value in expected.working]).outcome is Outcome.CORRECT


def use_source(source: str) -> None:
    made = reference(source)
    made.expected(made.inputs(1))


GOOD = "return x[0]"
BAD_PROBLEMS = {
    "import missing_package": "trial cannot be executed: ModuleNotFoundError: No module named 'missing_package'",
    "1 / 0": "trial cannot be executed: ZeroDivisionError: division by zero",
    "import sys; sys.exit(3)": "trial cannot be executed: SystemExit: 3",
    "def get_inputs(): return []": "trial defines no Model.",
    "class Model: pass": "trial defines no get_inputs.",
    "Model = 3\ndef get_inputs(): return []": "trial defines no Model.",
    model(GOOD, inputs="1 / 0"): "get_inputs() of the problem raises ZeroDivisionError: division by zero",
    model(GOOD, inputs="torch.randn(3)"): "get_inputs() of trial returns no list but a Tensor.",
    model(GOOD, inputs="None"): "get_inputs() of trial returns no list but a NoneType.",
    model(GOOD, inputs="[1, 2.0]"): "get_inputs() of trial returns no tensor.",
    model(GOOD, inputs="[]"): "get_inputs() of trial returns no tensor.",
    model(GOOD, inputs="[torch.randn(3), object()]"): (
        "get_inputs() of trial returns a value of type object; tensors and scalars are wanted."
    ),
    model(GOOD, inputs="[np.ones(3)]"): (
        "get_inputs() of trial returns a value of type ndarray; tensors and scalars are wanted."
    ),
    model("return 1 / 0"): "Model of trial raises ZeroDivisionError: division by zero",
    model("return x[0] @ x[0]"): "Model of trial raises RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    model("return x[0].sum().item()"): "Model of trial returns no tensor.",
    model("return None"): "Model of trial returns no tensor.",
    model("return object()"): "Model of trial raises TypeError: a value of type object",
    model("return x[0].to_sparse()"): "Model of trial returns something else than plain dense tensors.",
    model(GOOD, init="raise ValueError('two\\n lines')"): "Model() of trial raises ValueError: two lines",
    model(GOOD) + "    def get_init_inputs(): return 3": "get_init_inputs() of trial returns no list.",
    model(GOOD) + "    def get_init_inputs(): return [1, 2]": "Model() of trial raises TypeError:",
    model(GOOD) + "    def get_init_inputs(): return 1 / 0": "get_init_inputs() of the problem raises ZeroDivision",
    model(GOOD) + "    def get_init_inputs(): return [len]": (
        "get_init_inputs() of trial returns a value of type builtin_function_or_method; tensors and scalars are wanted."
    ),
    "def get_inputs(): return []\nclass Model: pass": "Model of trial is no torch.nn.Module.",
}


@pytest.mark.parametrize(("source", "sentence"), BAD_PROBLEMS.items(), ids=range(len(BAD_PROBLEMS)))
def test_a_problem_that_cannot_be_used_is_told_why(source: str, sentence: str) -> None:
    with pytest.raises(BadProblem) as raised:
        use_source(source)
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)
    assert "BadProblem" not in str(raised.value)


@pytest.mark.parametrize(
    "inputs",
    [
        "[torch.randn(3, generator=torch.Generator().manual_seed(random.SystemRandom().getrandbits(60)))]",
        "[torch.from_numpy(np.random.default_rng().normal(size=3))]",
        "[torch.randn(random.SystemRandom().randint(1, 10**9) % 997)]",
    ],
)
def test_inputs_that_the_seed_does_not_decide_are_refused(inputs: str) -> None:
    made = reference(model(GOOD, inputs=inputs), build=False)
    with pytest.raises(BadProblem, match="draws other values under the same torch seed"):
        check_inputs(made)


def test_the_compiled_baseline_needs_a_gpu() -> None:
    made = reference(LINEAR)
    with pytest.raises(BadProblem, match="cpu device"):
        made.run(made.inputs(1), Baseline.COMPILE)


@pytest.mark.parametrize("name", sorted(builtin_files()))
def test_every_builtin_problem_can_be_used(name: str) -> None:
    made = Reference(load_problem(builtin_files()[name]).small(), "cpu", train=False)
    check_inputs(made)
    made.build(1)
    inputs: list[Any] = made.inputs(1)
    expected = made.expected(inputs)
    assert all(exact is not None for exact in expected.exact), "fp64 is the anchor of every tolerance"
    assert not {"D3", "C9", "C10", "C11"} & made.own_codes
    assert not made.changes_inputs


def test_what_nobody_rounds_stays_where_it_is_a_few_roundings_away() -> None:
    made = reference(model("return x", inputs="[torch.rand(64), torch.ones(64), torch.arange(64)]"))
    drawn, whole, order = torch.rand(64), torch.randint(-3, 4, (64,)).float(), torch.arange(64)
    nearby = made.expected([drawn, whole, order]).nearby
    assert nearby is not None
    runs = list(nearby())
    assert len(runs) == NEARBY_RUNS
    for moved, same, ints in runs:
        apart = float(((moved - drawn) / drawn).abs().max())
        assert 0 < apart <= 1.1 * NEARBY_ROUNDINGS[torch.float32] * torch.finfo(torch.float32).eps
        assert torch.equal(same, whole)
        assert torch.equal(ints, order)


def test_a_reference_that_insists_on_its_inputs_has_nothing_nearby() -> None:
    insists = "assert bool((x[0].sum(1) == 1).all()); return x[0]"
    made = reference(model(insists, inputs="[torch.full((4, 8), 0.125)]"))
    nearby = made.expected(made.inputs(1)).nearby
    assert nearby is not None
    assert len(list(nearby())) < NEARBY_RUNS
