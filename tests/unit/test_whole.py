"""Whole numbers: which problems can be asked for them, and what they show."""

import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from drkernel_q.correctness import Precision
from drkernel_q.problem import Problem, builtin_files, load_problem
from workers.comparison.reference import Reference
from workers.exchange.integrity import same_bits
from workers.judging import whole
from workers.judging.whole import deviation, make_task


@pytest.fixture(autouse=True)
def own_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def problem(
    forward: str, *, inputs: str = "[torch.randn(16, 64), torch.randn(64, 24)]", init: str = "pass"
) -> Reference:
    source = f"""
    import torch, torch.nn as nn, torch.nn.functional as F
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            {init}
        def forward(self, *x):
            {forward}
    def get_inputs():
        return {inputs}
    """
    made = Reference(Problem(name="trial", source=textwrap.dedent(source)), "cpu", train=False)
    made.build(1)
    made.narrow(Precision.REFERENCE)
    return made


LINEAR = "self.a, self.b = nn.Linear(64, 48), nn.Linear(48, 32)"
EXACT = {
    "product": problem("return x[0] @ x[1]"),
    "half product": problem("return x[0] @ x[1]", inputs="[torch.randn(16, 64).half(), torch.randn(64, 24).half()]"),
    "layers": problem("return self.b(torch.relu(self.a(x[0])))", init=LINEAR),
    "convolution": problem(
        "return self.c(x[0])", init="self.c = nn.Conv1d(16, 8, 3)", inputs="[torch.randn(2, 16, 64)]"
    ),
    "sum": problem("return x[0].sum()"),
    "mean": problem("return x[0].mean(-1)"),
    "running sum": problem("return x[0].cumsum(-1)"),
    "largest": problem("return x[0].amax(-1), x[0] * 0.5"),
    "one of two is empty": problem("return x[0] * 2, x[1].sum(-1)", inputs="[torch.randn(0, 3), torch.randn(8, 4)]"),
    "embedding": problem(
        "return self.e(x[0])", init="self.e = nn.Embedding(9, 8)", inputs="[torch.randint(9, (5, 3))]"
    ),
}
INEXACT = {
    "softmax": problem("return x[0].softmax(-1)"),
    "gelu": problem("return F.gelu(x[0])"),
    "norm": problem("return F.layer_norm(x[0], (64,))"),
    "index": problem("return x[0].argmax(-1)"),
    "mask": problem("return x[0] > 0"),
    "a third": problem("return x[0] / 3"),
    "constant": problem("return x[0] * 0"),
    "empty": problem("return x[0] * 2", inputs="[torch.randn(0, 3)]"),
    "eighth bits": problem("return x[0]", inputs="[torch.randn(4, 4).to(torch.float8_e5m2)]"),
    "fussy": problem("assert x[0].abs().min() > 0; return x[0]"),
}


@pytest.mark.parametrize("made", EXACT.values(), ids=EXACT)
def test_a_problem_that_is_exact_on_whole_numbers_gets_a_task(made: Reference) -> None:
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    task = make_task(made)
    assert task is not None
    outputs = [made.run(task.inputs)] if len(task.units) == 1 else list(made.run(task.inputs))
    assert deviation(task, outputs) is None, "the reference itself has nothing missing"
    state = made.model.state_dict()
    assert all(set(value.unique().tolist()) <= {-1.0, 0.0, 1.0} for value in state.values())
    assert not before or not all(same_bits(before[name], value) for name, value in state.items())


@pytest.mark.parametrize("made", INEXACT.values(), ids=INEXACT)
def test_any_other_gets_none_and_keeps_its_weights(made: Reference) -> None:
    assert make_task(made) is None


def test_weights_come_back_where_there_is_no_task() -> None:
    made = problem("return F.gelu(self.a(x[0]))", init=LINEAR)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    assert make_task(made) is None
    assert all(same_bits(before[name], value) for name, value in made.model.state_dict().items())


FAULTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the last term": lambda a, b: a[:, :-1] @ b[:-1],
    "the first term": lambda a, b: a[:, 1:] @ b[1:],
    "one row": lambda a, b: torch.cat([(a @ b)[:-1], (a @ b)[-1:] * 0]),
    "one element": lambda a, b: (a @ b) + torch.nn.functional.one_hot(torch.tensor(7), 16 * 24).view(16, 24),
    "NaN": lambda a, b: torch.where(torch.arange(24) == 5, torch.nan, a @ b),
    "infinity": lambda a, b: torch.where(torch.arange(24) == 5, torch.inf, a @ b),
    "half": lambda a, b: 0.5 * (a @ b),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_is_missing_is_seen(fault: Callable[[Tensor, Tensor], Tensor]) -> None:
    task = make_task(EXACT["product"])
    assert task is not None
    found = deviation(task, [fault(*task.inputs)])
    assert found is not None
    assert found.detail.startswith("on small whole numbers, where every sum is exact, ")
    assert found.pattern is not None


def test_rounding_of_operands_another_order_and_other_algorithms_are_not() -> None:
    task = make_task(EXACT["product"])
    assert task is not None
    a, b = task.inputs
    outputs = {
        "bf16": (a.bfloat16() @ b.bfloat16()).float(),
        "backwards": a.flip(1) @ b.flip(0),
        "scaled and back": ((a * 0.1) @ (b / 3)) * 30,
        "nearly": a @ b + 0.2,
    }
    for name, output in outputs.items():
        assert deviation(task, [output]) is None, name


def test_a_mean_is_counted_in_its_own_unit() -> None:
    task = make_task(EXACT["mean"])
    assert task is not None
    (x, *_) = task.inputs
    assert task.units[0] < 1
    assert deviation(task, [x.sum(-1) * (1 / 64)]) is None
    assert deviation(task, [x[:, :-1].sum(-1) / 64]) is not None


def test_edges_are_never_zero_and_structure_is_kept() -> None:
    made = problem("return x[0] @ x[1]", inputs="[torch.randn(40, 40).tril(), torch.rand(40, 8)]")
    task = make_task(made)
    assert task is not None
    lower, positive = task.inputs
    assert torch.equal(lower.tril(), lower)
    assert int((lower[-1] != 0).sum()) >= 8
    assert bool((positive[-1] == 1).all()), "fewer elements than an edge must have"
    assert set(positive.unique().tolist()) == {0.0, 1.0}


def test_long_sums_get_fewer_terms() -> None:
    made = problem("return x[0] @ x[1]", inputs="[torch.randn(4, 2**18), torch.randn(2**18, 2)]")
    task = make_task(made)
    assert task is not None
    assert float((task.inputs[0] != 0).double().mean()) < 0.5
    assert deviation(task, [task.inputs[0][:, :-1] @ task.inputs[1][:-1]]) is not None
    made = problem("return x[0].sum(-1)", inputs="[torch.randn(8, 2**16).bfloat16()]")
    assert make_task(made) is None, "no density keeps bfloat16 exact"


def test_a_class_that_is_accepted_must_be_exact_too() -> None:
    made = problem(
        "return (x[0] @ x[1]) @ x[2]", inputs="[torch.randn(8, 400), torch.randn(400, 8), torch.randn(8, 8)]"
    )
    made.narrow(Precision.BF16)
    task = make_task(made)
    assert task is None or deviation(task, [(x := task.inputs)[0] @ x[1] @ x[2]]) is None


@pytest.mark.parametrize("name", ["matmul", "matmul_half", "mlp", "cumulative_sum", "depthwise_conv", "sum_middle"])
def test_builtin_problems_are_asked(name: str) -> None:
    made = Reference(load_problem(builtin_files()[name]).small(), "cpu", train=False)
    made.build(1)
    made.narrow(Precision.REFERENCE)
    assert whole.make_task(made) is not None
