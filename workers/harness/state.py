"""State of a candidate's process that a forward call has no business to change, and deeds it has no business to do.

A `Guard` is made before any candidate code is loaded; what differs afterwards is evidence, by the codes of `CODES`.
Python code cannot take an audit hook away, and cannot look for the harness without the hook's knowing it
(`workers.harness.deeds`). What the guard relies on while it looks is out of the candidate's reach
(`workers.harness.witness`).
"""

import builtins
import contextlib
import functools
import gc
import json
import json.scanner
import mmap
import os
import select
import socket
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._utils import CallbackRegistry
from torch.cuda import _gpu_trace
from torch.utils._device import DeviceContext

from workers.exchange.shared import is_exactly
from workers.harness.deeds import audit_hook
from workers.harness.launch import launch_types
from workers.harness.witness import functions_of, unchanged, undisturbed, unheld

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
#: Operators of torch that the harness relies on, and the keys under which they are dispatched for its tensors.
_OPERATORS = (
    *("aten::copy_", "aten::zero_", "aten::fill_.Scalar", "aten::empty.memory_format", "aten::empty_strided"),
    *("aten::sum", "aten::sum.dim_IntList", "aten::take", "aten::equal", "aten::clone", "aten::view.dtype"),
    *("aten::as_strided", "aten::detach", "aten::stack", "aten::index_put_", "aten::slice.Tensor", "aten::view"),
    *("aten::resolve_conj", "aten::resolve_neg", "aten::_local_scalar_dense", "aten::item", "aten::_to_copy"),
    *("aten::contiguous", "aten::reshape", "aten::split.Tensor", "aten::empty_like", "aten::flatten.using_ints"),
    *("aten::select.int", "aten::alias", "aten::view_as_real", "aten::ne.Tensor", "aten::where.self"),
    *("profiler::_record_function_enter_new", "profiler::_record_function_exit._RecordFunction"),
    *("profiler::_record_function_enter", "profiler::_record_function_exit"),
)
#: Keys that torch itself registers Python code for, sooner or later.
_RESTLESS_KEYS = ("Meta", "Python", "PreDispatch", "FuncTorch", "debug")
#: Packages that are taken out of the candidate's sight.
_HIDDEN = frozenset({"__main__", "drkernel_q", "workers"})
#: What an answer from the candidate's thread may be.
_PLAIN = (bool, int, str, type(None))
#: Calls a function on the thread that candidate code runs on.
Ask = Callable[..., Any]


def _directly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class Guard:
    """Watches this process from now on; whoever makes it is not watched himself."""

    check: Callable[[], bool]
    """Says whether the harness can go on without running code of the candidate, and remembers if it cannot."""
    changes: Callable[..., list[str]]
    """Names what differs from the beginning, and what was done since; given what `look` returned, it trusts that
    nothing of the candidate's has run since `check`."""
    look: Callable[[], list[str]]
    """For the thread of the candidate's code: says what that has been left with."""
    accept: Callable[[str], None]
    """Takes what there is of one kind now for the beginning; for what we change before there is a candidate."""
    keep: Callable[[object], None]
    """Watches what an object of ours holds from now on, and what its functions close over."""
    settle: Callable[[], tuple[Any, ...]]
    """For the thread of the candidate's code, right after a call: collects no more garbage, and returns what it saw."""
    settled: Callable[[object], None]
    """Takes what `settle` returned, and remembers what differs from the beginning."""

    def __init__(
        self,
        device: str,
        *,
        ask: Ask = _directly,
        collects: Callable[[], bool] = gc.isenabled,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        """Watch what code that `ask` calls does; `collects` says whether garbage is collected meanwhile.

        `leave` is called when somebody else's code acts on this thread (`workers.harness.deeds`).
        """
        ours, names, deeds = _our_code(), tuple(CODES), set[str]()
        others = {name: module for name, module in sys.modules.items() if name.split(".")[0] not in _HIDDEN}
        same = unchanged(ours, [*_OWNERS, *launch_types(device)], others)
        dispatched = undisturbed(_OPERATORS, _RESTLESS_KEYS)
        callbacks = tuple(registry.callback_list.__len__ for registry in _registries())
        look, frames = functools.partial(_look, _looks(device)), sys._current_frames
        observe = functools.partial(_observe, collects)
        before, running = observe(ask(look)), len(frames())
        held, keep = unheld()
        for operator in _RANGES:
            keep(operator)
        parts = (
            ("functions", same),
            ("functions", held),
            ("operators", dispatched),
            *(("module hooks", _nobody(each)) for each in callbacks),
        )

        def check() -> bool:
            sound = True
            for name, is_sound in parts:
                if not is_sound():
                    deeds.add(name)
                    sound = False
            if frames().__len__() > running:
                deeds.add("threads")
            return sound

        def changes(looked: Any = None) -> list[str]:
            if looked is None and not check():
                return [*deeds]
            after = observe(ask(look) if looked is None else looked)
            found = {name for name, value in before.items() if after[name] != value} | deeds
            return [name for name in names if name in found]

        def accept(name: str) -> None:
            before[name] = observe(ask(look))[name]

        quick_look = _looker()
        self.accept, self.look = accept, look
        self.check, self.changes, self.keep, self.settle = check, changes, keep, _settler(quick_look)
        self.settled = functools.partial(_note_settled, deeds, ask(quick_look))
        sys.addaudithook(audit_hook(deeds.add, functions_of(ours), leave))


def _our_code() -> list[Any]:
    """List our modules and the classes that are defined in them, and what else nobody has a reason to touch."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "workers"]
    classes = {value: None for module in modules for value in vars(module).values() if isinstance(value, type)}
    own = (kind for kind in classes if kind.__module__.split(".")[0] == "workers")
    return [*modules, *own, json._default_decoder, _gpu_trace, CallbackRegistry, *_registries()]  # type: ignore[attr-defined]


def _registries() -> list[Any]:
    """List what torch calls back for every event, wait and allocation on the device."""
    return [value for value in vars(_gpu_trace).values() if isinstance(value, CallbackRegistry)]


def _looks(device: str) -> tuple[Callable[[], Any], ...]:
    """List what a thread is asked for that it has to itself."""
    modes = (_function_modes(), torch._C._len_torch_dispatch_stack)
    tracing = (sys.gettrace, sys.getprofile, get_eval_frame_callback)
    stream = (functools.partial(torch._C._cuda_getCurrentRawStream, 0),) if device == "cuda" else ()
    return (*modes, *tracing, torch.is_grad_enabled, _overrides(), *stream)


def _observe(collects: Callable[[], bool], looked: Any) -> dict[str, str]:
    """Look at everything that can be looked at from outside; `looked` is what a thread was left with (`_looks`)."""
    there = looked if type(looked) is list and all(type(each) is str for each in looked) else ["nonsense"] * 8
    return {
        "modes": " ".join(there[:2]),
        "operators": there[6],
        "module hooks": str([len(getattr(nn.modules.module, name, ())) for name in _HOOKS]),
        "tracing": " ".join(there[2:5]),
        "garbage collector": f"{collects()} {len(gc.callbacks)}",
        "numeric flags": f"{there[5]} {_flags()}",
        "stream": " ".join(there[7:]),
    }


def _overrides() -> Callable[[], int]:
    """Return a function that counts the operators of torch that Python code has overridden, at once where none has."""
    known = torch.library._impls
    size, count = len(known), sum(name.startswith("aten/") for name in known)

    def overrides() -> int:
        now = torch.library._impls
        return count if len(now) == size else sum(name.startswith("aten/") for name in now)

    return overrides


def _look(looks: tuple[Callable[[], Any], ...]) -> list[str]:
    values = [look() for look in looks]
    return [str(value) if is_exactly(value, *_PLAIN) else "something else" for value in values]


def _flags() -> list[str]:
    """Ask for the numeric flags; one that was set by torch's newer names does not answer to the older ones."""
    answers = []
    for flag in _FLAGS:
        try:
            answers.append(str(flag()))
        except RuntimeError:
            answers.append("unclear")
    return answers


def _function_modes() -> Callable[[], int]:
    """Return a function that counts the function modes of a thread, but for that of `torch.set_default_device`."""
    count, at = torch._C._len_torch_function_stack, torch._C._get_function_stack_at
    default, kind, numbers = DeviceContext, type, range

    def modes() -> int:
        found = 0
        for place in numbers(count()):
            if kind(at(place)) is not default:
                found += 1
        return found

    return modes


def _nobody(count: Callable[[], int]) -> Callable[[], bool]:
    """Return a function that says whether a count is zero."""

    def is_nobody() -> bool:
        return not count()

    return is_nobody


def _note_settled(deeds: set[str], usual: tuple[Any, ...], seen: tuple[Any, ...]) -> None:
    """Hold what `settle` returned against what it returned before there was a candidate."""
    collected, *rest = seen
    if collected is not True:
        deeds.add("garbage collector")
    for kind, now, then in zip(_SETTLED, rest, usual, strict=True):
        if now != then:
            deeds.add(kind)


def _looker() -> Callable[[], tuple[Any, ...]]:
    """Return a function that looks at what a thread has been left with; it looks nothing up by name."""
    modes, dispatch_modes = _function_modes(), torch._C._len_torch_dispatch_stack
    trace, profile, frames = sys.gettrace, sys.getprofile, get_eval_frame_callback
    included, excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
    casts, host, device = torch.is_autocast_enabled, "cpu", "cuda"

    def look() -> tuple[Any, ...]:
        keys = included().raw_repr(), excluded().raw_repr(), casts(host), casts(device)
        return modes(), dispatch_modes(), keys, trace() is None, profile() is None, frames() is None

    return look


def _settler(look: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    """Return the `settle` of a guard; it looks nothing up by name."""
    collects, stop = gc.isenabled, gc.disable

    def settle() -> tuple[Any, ...]:
        collected = collects()
        stop()
        return collected, *look()

    return settle


#: Kinds of change that `Guard.settle` sees, in its order.
_SETTLED = ("modes", "modes", "modes", "tracing", "tracing", "tracing")
#: What decides how torch computes, asked of C code alone: whatever answers for `torch.backends` runs where it is asked.
#: What can only be made stricter than it is, as determinism and TF32 in convolutions can, is everybody's own business.
_FLAGS: tuple[Callable[[], object], ...] = (
    *(torch.get_default_dtype, torch.get_num_threads, torch._C._get_float32_matmul_precision),
)
#: What torch's profiler begins and ends a range with, looked up here for the first time.
_RANGES = (torch.ops.profiler._record_function_enter_new, torch.ops.profiler._record_function_exit)
#: Modules and classes of others that the harness relies on.
_OWNERS: tuple[Any, ...] = (
    *(torch, torch.Tensor, torch.nn.Module, torch.nn.Parameter, torch.nn.functional, torch.cuda, torch.cuda.Event),
    *(torch.library, torch.autograd, torch.autograd.grad_mode, torch.no_grad, torch.set_grad_enabled),
    *(torch.utils._pytree, torch.backends.cudnn, nn.modules.module, torch.utils._device, torch.ops.profiler),
    *(torch.profiler.profile, torch.autograd.profiler, torch.autograd.profiler.profile),
    *(torch.autograd.profiler.record_function, torch._C._autograd),
    *(torch.profiler.profiler, torch.autograd.profiler_util, torch.cuda.memory),
    *(builtins, contextlib, functools, os, sys, time, traceback, gc, mmap, DeviceContext, Counter),
    *(contextlib.nullcontext, contextlib._GeneratorContextManager, torch.UntypedStorage),
    *(json, json.decoder, json.decoder.JSONDecoder, json.scanner, struct, select, socket, socket.socket),
)
