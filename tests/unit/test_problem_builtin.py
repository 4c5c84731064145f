"""The built-in set: every problem runs at its small sizes, and no part of it is for nothing."""

import ast
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from drkernel_q.problem import Problem, builtin_files, load_problem

NAMES = list(builtin_files())
HALF = {"matmul_half", "decode_attention"}
#: Largest error of the working precision against fp64, relative to the output's root mean square.
TOLERANCE = {True: 2e-2, False: 2e-5}


def builtin(name: str) -> Problem:
    return load_problem(builtin_files()[name])


def execute(problem: Problem) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": problem.name}
    exec(compile(problem.source, problem.name, "exec"), namespace)
    return namespace


def build(name: str, *, seed: int) -> tuple[Any, list[torch.Tensor]]:
    """Model and inputs at the small sizes; both come from the seed."""
    module = execute(builtin(name).small())
    torch.manual_seed(seed)
    return module["Model"](*module["get_init_inputs"]()), module["get_inputs"]()


def leaves(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    else:
        for part in output.values() if isinstance(output, dict) else output:
            yield from leaves(part)


@torch.no_grad()
def run(model: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(leaves(model(*inputs)))


def differ(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Whether some part differs by more than 1 % of its scale, or in an integer or a boolean."""
    return any(distance(a, b) > 1e-2 for a, b in zip(left, right, strict=True))


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    if not left.is_floating_point():
        return float((left != right).any())
    return float((left.double() - right.double()).abs().max() / right.double().square().mean().sqrt())


def changed(tensor: torch.Tensor) -> torch.Tensor:
    """Other content of the same kind: the same values, each one place further."""
    values = tensor.detach().flatten()
    return (values.roll(1) if len(values) > 1 else values + 1).view_as(tensor)


def test_there_are_at_least_eight_problems_a_level() -> None:
    levels = [path.parent.name for path in builtin_files().values()]
    assert {level: levels.count(level) >= 8 for level in sorted(set(levels))} == {
        "level1": True,
        "level2": True,
        "level3": True,
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_is_written_as_the_others_are(name: str) -> None:
    problem = builtin(name)
    tree = ast.parse(problem.source)
    assert problem.summary.endswith("."), "a sentence for `drkq problem list`"
    assert problem.cpu_sizes
    assert problem.small().hash != problem.hash
    assert {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} == {
        "get_inputs",
        "get_init_inputs",
    }
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"F.dropout", "nn.Dropout", "torch.device"}


@pytest.mark.parametrize("name", NAMES)
def test_the_small_sizes_are_small(name: str) -> None:
    _, inputs = build(name, seed=0)
    assert sum(tensor.numel() for tensor in inputs) <= 2**14


@pytest.mark.parametrize("name", NAMES)
def test_outputs_agree_with_fp64_and_repeat(name: str) -> None:
    model, inputs = build(name, seed=1)
    outputs = run(model, inputs)
    again = run(*build(name, seed=1))
    assert all(torch.equal(a, b) for a, b in zip(outputs, again, strict=True))
    exact = run(
        copy.deepcopy(model).double(),
        [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs],
    )
    assert max(distance(a, b) for a, b in zip(outputs, exact, strict=True)) < TOLERANCE[name in HALF]


@pytest.mark.parametrize("name", NAMES)
def test_zeros_and_constants_are_no_answer(name: str) -> None:
    for output in run(*build(name, seed=2)):
        assert output.unique().numel() > 1
        if output.is_floating_point():
            assert torch.isfinite(output).all()
            assert not torch.allclose(output, torch.zeros_like(output), atol=1e-2, rtol=1e-2)
            assert output.std() > 0.05 * output.square().mean().sqrt()


@pytest.mark.parametrize("name", NAMES)
def test_outputs_depend_on_every_input_and_weight(name: str) -> None:
    model, inputs = build(name, seed=3)
    outputs = run(model, inputs)
    for position, tensor in enumerate(inputs):
        others = [*inputs[:position], changed(tensor), *inputs[position + 1 :]]
        assert differ(run(model, others), outputs), f"input {position} does not matter"
    for key, tensor in model.state_dict().items():
        other = copy.deepcopy(model)
        other.load_state_dict({**model.state_dict(), key: changed(tensor)})
        assert differ(run(other, inputs), outputs), f"{key} does not matter"


def test_the_set_has_the_variety_that_a_judge_must_handle() -> None:
    kinds: set[str] = set()
    for name in NAMES:
        model, inputs = build(name, seed=4)
        output = model(*inputs)
        kinds |= {f"in {tensor.dtype}" for tensor in inputs} | {f"out {part.dtype}" for part in leaves(output)}
        kinds.add(type(output).__name__)
        if isinstance(output, dict) and any(isinstance(part, dict) for part in output.values()):
            kinds.add("nested dict")
        kinds |= {"buffers" for _ in model.buffers()} | {"parameters" for _ in model.parameters()}
    assert kinds >= {
        "in torch.float32",
        "in torch.float16",
        "in torch.int64",
        "in torch.bool",
        "out torch.float16",
        "out torch.int64",
        "out torch.bool",
        "Tensor",
        "tuple",
        "nested dict",
        "buffers",
        "parameters",
    }
