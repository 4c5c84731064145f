"""Each candidate of tests/kernels against the built-in problem of the same name; run by `tests.unit.interpreted`."""

import functools
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tests.need import ROOT
from tests.unit.interpreted import assert_close
from workers.cpu import interpreter

KERNELS = sorted((ROOT / "tests" / "kernels").glob("*.py"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_problem(name: str) -> ModuleType:
    (path,) = (ROOT / "drkernel_q" / "problems").glob(f"*/{name}.py")
    problem = load(path)
    vars(problem).update(problem.CPU_SIZES)
    return problem


def leaves(value: Any) -> list[Tensor]:
    """Return the tensors of nested outputs, by name in a dict."""
    if isinstance(value, Tensor):
        return [value]
    parts = [value[name] for name in sorted(value)] if isinstance(value, dict) else value
    return [tensor for part in parts for tensor in leaves(part)]


def build(factory: type[nn.Module], arguments: list[Any]) -> nn.Module:
    torch.manual_seed(0)
    return factory(*arguments)


def check(path: Path) -> None:
    problem, candidate = load_problem(path.stem), load(path)
    arguments = problem.get_init_inputs()
    reference, model = build(problem.Model, arguments), build(candidate.ModelNew, arguments)
    state = reference.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())

    inputs = problem.get_inputs()
    pristine = [value.clone() for value in inputs]
    with interpreter.LaunchRecorder() as launches:
        outputs = model.to("cuda")(*[value.cuda() for value in inputs])
    assert launches
    assert {launch.file for launch in launches} == {str(path)}
    assert all(torch.equal(value, old) for value, old in zip(inputs, pristine, strict=True))
    with torch.no_grad():
        expected = leaves(reference(*inputs))
    for actual, wanted in zip(leaves(outputs), expected, strict=True):
        assert_close(actual, wanted, 1e-3 if wanted.dtype == torch.float16 else 1e-5)
    assert torch._C._len_torch_function_stack() == 0


globals().update({f"case_{path.stem}": functools.partial(check, path) for path in KERNELS})
