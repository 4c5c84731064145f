"""State of a candidate's process that a forward call has no business to change, as comparable text.

Taken before any candidate code is loaded and again after each phase; what differs is evidence. The first letter-number
pair of `CODES` is the trick of the catalogue that such a change belongs to.
"""

import gc
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

#: What is watched, and the code of a change.
CODES: Mapping[str, str] = {
    "modes": "E1",
    "dispatcher": "E1",
    "module hooks": "E1",
    "stream": "D2",
    "functions": "D10",
    "tracing": "E10",
    "garbage collector": "D7",
    "threads": "D6",
    "numeric flags": "F3",
}
#: Changes that an honest kernel may cause by clumsiness: suspicious, and not enough to reject.
SOFT = frozenset({"threads", "numeric flags", "garbage collector"})
_OPERATORS = (
    "empty.memory_format",
    "copy_",
    "mm",
    "addmm",
    "bmm",
    "softmax.int",
    "_softmax",
    "sum.dim_IntList",
    "add.Tensor",
)
_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
#: Functions that measure, compare or copy: their replacement fools an evaluator that trusts them.
_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (time, "perf_counter"),
    (time, "perf_counter_ns"),
    (time, "time"),
    (time, "monotonic"),
    (torch, "allclose"),
    (torch, "equal"),
    (torch.Tensor, "copy_"),
    (torch.Tensor, "clone"),
    (torch.Tensor, "to"),
    (torch.Tensor, "cpu"),
    (torch.Tensor, "detach"),
    (torch.cuda, "synchronize"),
    (torch.cuda, "Event"),
    (torch.cuda.Event, "record"),
    (torch.cuda.Event, "elapsed_time"),
    (nn.Module, "__call__"),
    (nn.Module, "_call_impl"),
    (nn.Module, "to"),
    (nn.Module, "train"),
)


def observe(device: str, ours: tuple[Callable[..., Any], ...] = ()) -> dict[str, str]:
    """Describe everything that `CODES` names; `ours` are functions of the harness to watch as well."""
    found = {
        "modes": f"{torch._C._len_torch_function_stack()} {torch._C._len_torch_dispatch_stack()}",
        "dispatcher": str(hash(tuple(torch._C._dispatch_dump(f"aten::{name}") for name in _OPERATORS))),
        "module hooks": str([len(getattr(nn.modules.module, name, ())) for name in _HOOKS]),
        "functions": str(
            [_identity(getattr(owner, name, None)) for owner, name in _FUNCTIONS] + [*map(_identity, ours)]
        ),
        "tracing": f"{sys.gettrace() is not None} {sys.getprofile() is not None}",
        "garbage collector": f"{gc.isenabled()} {len(gc.callbacks)}",
        "threads": str(len(sys._current_frames())),
        "numeric flags": str(_flags()),
        "stream": "",
    }
    if device == "cuda":
        found["stream"] = str(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Name what differs."""
    return [name for name in CODES if before[name] != after[name]]


def _identity(function: Any) -> tuple[int, int]:
    """Identify a function by object and by code: swapping `__code__` keeps the object."""
    code = getattr(function, "__code__", None)
    return id(function), hash(code.co_code + repr(code.co_consts).encode()) if code is not None else 0


def _flags() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        str(torch.get_default_device()),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        (cudnn.allow_tf32, cudnn.deterministic, cudnn.enabled),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    )
