"""Triton launches of this process: counted for good, and for a while suppressed or their results perturbed.

All of it is done inside the candidate's process, so what it says is a claim: it can add evidence and take none away.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from workers.integrity import checksum
from workers.trace import OWN_RANGE

#: Launches by (kernel name, file that its function was defined in).
Launches = Counter[tuple[str, str]]
#: How a perturbed result differs: enough for any tolerance, little enough to stay in the domain of what follows.
_FACTOR, _OFFSET = 1.02, 1e-3
#: Tensors up to this size are copied before a launch, to tell what it writes, bytes.
_LARGE_BYTES = 2**28


class Loaded(NamedTuple):
    """A Triton kernel that was compiled and loaded onto the device."""

    name: str
    """As the device knows it."""
    file: str
    """The file that its function was defined in; empty if no function was compiled."""
    threads: int
    """Threads of a block."""
    registers: int
    """Registers of a thread."""


def record_loads(device: str) -> list[Loaded]:
    """List from now on the Triton kernels that are loaded, by whomever and however they will be launched.

    The interpreter of the CPU device loads none.
    """
    loads: list[Loaded] = []
    if device == "cpu":
        return loads
    from triton.compiler import CompiledKernel

    original = CompiledKernel._init_handles

    def init_handles(kernel: Any) -> None:
        fresh = kernel.module is None
        original(kernel)
        if fresh:
            function = getattr(getattr(kernel.src, "fn", None), "fn", None)
            file = function.__code__.co_filename if function is not None else ""
            threads = kernel.metadata.num_warps * kernel.metadata.target.warp_size
            loads.append(Loaded(kernel.metadata.name, file, threads, kernel.n_regs))

    CompiledKernel._init_handles = init_handles
    return loads


def count_for_good(device: str) -> Callable[[], Launches]:
    """Begin to count launches; what is returned takes the counts since the last time."""
    if device == "cpu":
        from workers.interpreter import LaunchRecorder

        recorded = LaunchRecorder(annotate=OWN_RANGE).__enter__()

        def take_recorded() -> Launches:
            counts: Launches = Counter((launch.name, launch.file) for launch in recorded)
            recorded.clear()
            return counts

        return take_recorded
    counts: Launches = Counter()

    def count(run: Callable[..., Any], function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(function, *args, warmup=warmup, **kwargs)
        if not warmup and kernel is not None:
            counts[kernel.metadata.name, function.fn.__code__.co_filename] += 1
        return kernel

    _replace(device, count)

    def take() -> Launches:
        taken = Counter(counts)
        counts.clear()
        return taken

    return take


@contextmanager
def suppressed(device: str) -> Iterator[None]:
    """Let every launch of a Triton function do nothing while the context lasts."""

    def skip(run: Callable[..., Any], function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(function, *args, warmup=True, **kwargs) if warmup else None

    with _replaced(device, skip):
        yield


@contextmanager
def perturbed(device: str) -> Iterator[list[int]]:
    """Change, by about 2 %, whatever floating-point numbers a launch has written, while the context lasts.

    Yields the checksums of what was written, a launch after the other.
    """
    checksums: list[int] = []

    def disturb(run: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if type(value) is torch.Tensor]
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        before = [tensor.clone() if tensor.nbytes <= _LARGE_BYTES else checksum(tensor) for tensor in floats]
        kernel = run(function, *args, **kwargs)
        for old, tensor in zip(before, floats, strict=True):
            checksums.extend(_disturb_as_a_whole(old, tensor) if isinstance(old, int) else _disturb(old, tensor))
        return kernel

    with _replaced(device, disturb):
        yield checksums


def _disturb(old: torch.Tensor, tensor: torch.Tensor) -> list[int]:
    """Change what differs from `old`; return its checksum, if anything does."""
    written = (tensor != old) & torch.isfinite(tensor)
    if not bool(written.any()):
        return []
    summed = checksum(torch.where(written, tensor, torch.zeros_like(tensor)).contiguous())
    tensor.copy_(torch.where(written, tensor * _FACTOR + _OFFSET, tensor))
    return [summed]


def _disturb_as_a_whole(old: int, tensor: torch.Tensor) -> list[int]:
    """Do the same to all of a tensor that is too large for a copy, if it is not what it was."""
    summed = checksum(tensor)
    if summed == old:
        return []
    tensor.mul_(_FACTOR).add_(_OFFSET)
    return [summed]


def launch_types(device: str) -> tuple[Any, ...]:
    """Return the classes that launches of Triton kernels go through."""
    if device == "cpu":
        return (function_type(device),)
    from triton.compiler import CompiledKernel

    return function_type(device), CompiledKernel


def function_type(device: str) -> Any:
    """Return the class whose `run` every launch goes through."""
    if device == "cpu":
        from triton.runtime.interpreter import InterpretedFunction

        return InterpretedFunction
    from triton.runtime.jit import JITFunction

    return JITFunction


def _replace(device: str, behaviour: Callable[..., Any]) -> Callable[[], None]:
    """Put `behaviour(run, function, *args, **kwargs)` in front of every launch; what is returned undoes it."""
    kind = function_type(device)
    original: Callable[..., Any] = kind.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return behaviour(original, self, *args, **kwargs)

    kind.run = run
    undo_compiled = _replace_compiled(behaviour) if device == "cuda" else None

    def undo() -> None:
        kind.run = original
        if undo_compiled is not None:
            undo_compiled()

    return undo


def _replace_compiled(behaviour: Callable[..., Any]) -> Callable[[], None]:
    """Do the same for launches of a kernel that was compiled before: `kernel[grid](...)`."""
    from triton.compiler import CompiledKernel

    original = CompiledKernel.__getitem__

    def getitem(kernel: Any, grid: Any) -> Callable[..., Any]:
        runner = original(kernel, grid)

        def launch(_function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
            runner(*args, **kwargs)
            return kernel

        def run(*args: Any, **kwargs: Any) -> Any:
            return behaviour(launch, kernel.src.fn, *args, warmup=False, **kwargs)

        return run

    CompiledKernel.__getitem__ = getitem

    def undo() -> None:
        CompiledKernel.__getitem__ = original

    return undo


@contextmanager
def _replaced(device: str, behaviour: Callable[..., Any]) -> Iterator[None]:
    undo = _replace(device, behaviour)
    try:
        yield
    finally:
        undo()
