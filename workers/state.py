"""State of a candidate's process that a forward call has no business to change, and deeds it has no business to do.

A `Guard` is made before any candidate code is loaded; what differs afterwards is evidence, by the codes of `CODES`.
Python code cannot take an audit hook away, and cannot look for the harness without the hook seeing it.
"""

import builtins
import gc
import json
import mmap
import select
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from operator import is_
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from workers.launch import launch_types

#: What is watched, and the code of a change.
CODES: Mapping[str, str] = {
    "modes": "E1",
    "operators": "E1",
    "module hooks": "E1",
    "stream": "D2",
    "functions": "D10",
    "introspection": "D12",
    "foreign calls": "D13",
    "tracing": "E10",
    "garbage collector": "D7",
    "threads": "D6",
    "numeric flags": "F3",
}
#: Changes that an honest kernel may cause by clumsiness: suspicious, and not enough to reject.
SOFT = frozenset({"threads", "numeric flags", "garbage collector", "foreign calls"})
_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
#: Audit events: ways to reach objects that were not given, and ways past Python.
_INTROSPECTION = frozenset(
    {
        "sys._getframe",
        "sys._current_frames",
        "gc.get_objects",
        "gc.get_referrers",
        "gc.get_referents",
        "sys.addaudithook",
        "sys.settrace",
        "sys.setprofile",
    }
)
_FOREIGN = frozenset({"ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.cdata", "ctypes.string_at"})
#: Our packages: a kernel has nothing to import from the judge's.
_OURS = frozenset({"workers", "drkernel_q", "policy"})
_THROUGH = ("/inspect.py", "/ctypes/__init__.py", "/importlib/__init__.py", "<frozen importlib._bootstrap>")
#: Attributes that lead from an object to a frame, and those whose replacement changes a function in place.
_ATTRIBUTES = {
    "object.__getattr__": frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"}),
    "object.__setattr__": frozenset({"__code__", "__defaults__", "__kwdefaults__"}),
}


class Guard:
    """Watches this process from now on."""

    def __init__(self, device: str, path: str, harness: Iterable[Any]) -> None:
        """Watch for what the file `path` does; `harness` are classes of ours whose functions must stay."""
        self.device = device
        self.path = path
        self.deeds: set[str] = set()
        self._looking = False
        self._frame = sys._getframe
        self._implementations: frozenset[str] = frozenset()
        self._taken_over: list[str] = []
        ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "workers"]
        theirs = [*_OWNERS, *launch_types(device)]
        self.owners: list[Any] = [*theirs, *ours, *harness]
        self._ours_from = len(theirs)
        self.functions = [_functions(owner) for owner in self.owners]
        self.codes = [_code_of(function) for function in self._python_functions()]
        self.before = self._observe()
        sys.addaudithook(self._audit)

    def changes(self) -> list[str]:
        """Name what differs from the beginning, and what was done since."""
        after = self._observe()
        found = {name for name, value in self.before.items() if after[name] != value} | self.deeds
        if self._functions_changed():
            found.add("functions")
        return [name for name in CODES if name in found]

    def _functions_changed(self) -> bool:
        for owner, known in zip(self.owners, self.functions, strict=True):
            # By identity alone: whatever took a function's place would answer a comparison itself.
            if not all(map(is_, map(vars(owner).get, known), known.values())):
                return True
        return self.codes != list(map(_code_of, self._python_functions()))

    def _python_functions(self) -> list[FunctionType]:
        """List the functions of ours: swapping a function's code keeps its identity."""
        ours = self.owners[self._ours_from :]
        return [value for owner in ours for value in vars(owner).values() if isinstance(value, FunctionType)]

    def _observe(self) -> dict[str, str]:
        stream = str(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())) if self.device == "cuda" else ""
        return {
            "modes": f"{torch._C._len_torch_function_stack()} {torch._C._len_torch_dispatch_stack()}",
            "operators": str(self._overridden()),
            "module hooks": str([len(getattr(nn.modules.module, name, ())) for name in _HOOKS]),
            "tracing": f"{sys.gettrace() is not None} {sys.getprofile() is not None}",
            "garbage collector": f"{gc.isenabled()} {len(gc.callbacks)}",
            "threads": str(len(sys._current_frames())),
            "numeric flags": str(_flags()),
            "stream": stream,
        }

    def _overridden(self) -> list[str]:
        """List the operators of torch that Python code has taken over; looked through only when there are others."""
        if torch.library._impls != self._implementations:
            self._implementations = frozenset(torch.library._impls)
            self._taken_over = sorted(name for name in self._implementations if name.startswith("aten/"))
        return self._taken_over

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        ours = event == "import" and str(arguments[0]).partition(".")[0] in _OURS
        if ours or event in _INTROSPECTION or (event in _ATTRIBUTES and arguments[1] in _ATTRIBUTES[event]):
            kind = "introspection"
        elif event in _FOREIGN:
            kind = "foreign calls"
        else:
            return
        if kind in self.deeds or self._looking:
            return
        self._looking = True  # to look for the caller raises an event of its own
        try:
            if self._is_theirs(self._frame(1)):
                self.deeds.add(kind)
        finally:
            self._looking = False

    def _is_theirs(self, frame: FrameType | None) -> bool:
        """Whether the candidate's file did it, itself or through a module that does such things for others."""
        while frame is not None and frame.f_code.co_filename.endswith(_THROUGH):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename == self.path


_OWNERS: tuple[Any, ...] = (
    *(torch, torch.Tensor, torch.nn.Module, torch.nn.functional, torch.cuda, torch.cuda.Event, torch.library),
    *(torch.autograd, torch.utils._pytree, time, json, json.encoder, json.decoder, socket.socket, select, struct),
    *(mmap, gc, builtins, sys),
    *(torch.profiler.profile, torch.autograd.profiler, torch.autograd.profiler.profile),
    *(torch.autograd.profiler.record_function, torch._C._autograd),
)
#: `sys` names that change by themselves.
_RESTLESS = frozenset({"last_exc", "last_type", "last_value", "last_traceback", "stdout", "stderr", "displayhook"})


def _functions(owner: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(owner).items()
        if callable(value) and not isinstance(value, ModuleType) and name not in _RESTLESS
    }


def _code_of(function: FunctionType) -> tuple[int, int]:
    return id(function.__code__), id(function.__defaults__)


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
