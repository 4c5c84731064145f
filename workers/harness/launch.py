"""Triton launches of this process: counted for good, and for a while suppressed or their results perturbed.

All of it is done inside the candidate's process, so what it says is a claim: it can add evidence and take none away.
What stands in front of a launch is put there once, before there is a candidate, and looks the same whatever it does.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from workers.exchange.integrity import PIECE, fingerprint, placed_sum
from workers.exchange.shared import is_exactly
from workers.exchange.trace import OWN_RANGE
from workers.harness.text import Text

#: Launches by kernel name, and whether the candidate's source holds the function.
Launches = Counter[tuple[str, bool]]
#: What is done instead of a launch: it is given Triton's own `run`, the function, and their arguments.
_Behaviour = Callable[..., Any]
#: How a perturbed result differs: enough for any tolerance, little enough to stay in the domain of what follows.
_FACTOR, _OFFSET = 1.02, 1e-3
#: Tensors up to this size are copied before a launch, to tell what it writes, bytes.
_LARGE_BYTES = 2**28
#: Operators that make memory ready, as an allocator of Triton's may, or read a number for a grid: they compute nothing.
_PREPARING = ("empty", "new_empty", "zero_", "fill_", "detach", "lift_fresh", "set_", "_local_scalar_dense")


class Loaded(NamedTuple):
    """A Triton kernel that was compiled and loaded onto the device."""

    name: str
    """As the device knows it."""
    own: bool
    """Whether the candidate's source holds its function."""
    threads: int
    """Threads of a block."""
    registers: int
    """Registers of a thread."""


class Perturbed(NamedTuple):
    """What was seen while launches were perturbed."""

    written: list[int]
    """Fingerprints of what was written, a launch after the other."""
    within: list[str]
    """Operators of torch that computed something inside of a launch."""


def record_loads(device: str, text: Text) -> list[Loaded]:
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
            threads = kernel.metadata.num_warps * kernel.metadata.target.warp_size
            own = text.holds(getattr(kernel.src, "fn", None))
            loads.append(Loaded(kernel.metadata.name, own, threads, kernel.n_regs))

    CompiledKernel._init_handles = init_handles
    return loads


class Launcher:
    """Stands in front of every launch of a Triton function, from now on."""

    def __init__(self, device: str, text: Text) -> None:
        """Begin to count; a launch is the candidate's own if `text` holds the function."""
        counts: Launches = Counter()
        behaviours: list[_Behaviour] = [_plainly]
        if device == "cpu":
            from workers.cpu.interpreter import LaunchRecorder

            LaunchRecorder(annotate=OWN_RANGE).__enter__()

        def behave(run: Callable[..., Any], function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
            kernel = behaviours[-1](run, function, *args, warmup=warmup, **kwargs)
            if not warmup and kernel is not None:
                counts[_name_of(kernel, function), text.holds(function)] += 1
            return kernel

        self._counts, self._behaviours = counts, behaviours
        self._run = _stand_in_front(device, behave)

    def take(self) -> list[tuple[str, bool, int]]:
        """Take the counts since the last time: name, whether it is the candidate's own, and how often."""
        taken = [(*key, count) for key, count in self._counts.items() if _is_count(key, count)]
        self._counts.clear()
        return taken

    def meddled(self, how: str) -> AbstractContextManager[Perturbed]:
        """Meddle with launches while the context lasts: `ablate` or `perturb` them, or leave them as they are."""
        if how == "ablate":
            return self.suppressed()
        return self.perturbed() if how == "perturb" else nullcontext(Perturbed([], []))

    @contextmanager
    def suppressed(self) -> Iterator[Perturbed]:
        """Let every launch of a Triton function do nothing while the context lasts."""

        def skip(run: Callable[..., Any], function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
            return run(function, *args, warmup=True, **kwargs) if warmup else None

        with self._instead(skip):
            yield Perturbed([], [])

    @contextmanager
    def held(self, wait: Callable[[], object]) -> Iterator[None]:
        """Compile the first function that is launched, and `wait` before it is, while the context lasts."""
        compiles, held = self._run, [False]

        def hold(run: Callable[..., Any], function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
            if not (warmup or held[0]):
                held[0] = True
                if run is compiles:
                    kernel = run(function, *args, warmup=True, **kwargs)
                    getattr(kernel, "_init_handles", _nothing)()  # compiles its launcher, and loads it
                wait()
            return run(function, *args, warmup=warmup, **kwargs)

        with self._instead(hold):
            yield

    @contextmanager
    def perturbed(self) -> Iterator[Perturbed]:
        """Change, by about 2 %, whatever floating-point numbers a launch has written, while the context lasts."""
        seen = Perturbed([], [])

        def disturb(run: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = list({id(tensor): tensor for tensor in _tensors_in((*args, *kwargs.values()))}.values())
            floats = [tensor for tensor in tensors if tensor.is_floating_point()]
            counted = [tensor for tensor in tensors if not tensor.is_floating_point()]
            before = [tensor.clone() if tensor.nbytes <= _LARGE_BYTES else fingerprint(tensor) for tensor in floats]
            sums = [fingerprint(tensor) for tensor in counted]
            with _Computing(seen.within):
                kernel = run(function, *args, **kwargs)
            for old, tensor in zip(before, floats, strict=True):
                moved = move_all_written(old, tensor) if isinstance(old, int) else move_written(old, tensor)
                seen.written.extend(moved)
            # Whole numbers are left as they are: what is 2 % of an index?
            seen.written.extend(now for old, now in zip(sums, map(fingerprint, counted), strict=True) if now != old)
            return kernel

        with self._instead(disturb):
            yield seen

    @contextmanager
    def _instead(self, behaviour: _Behaviour) -> Iterator[None]:
        self._behaviours.append(behaviour)
        try:
            yield
        finally:
            self._behaviours.remove(behaviour)


def _is_count(key: object, count: object) -> bool:
    """Whether this is what was counted, and nothing that somebody has put there."""
    if type(key) is not tuple or len(key) != 2:  # noqa: PLR2004 - a name, and whose it is
        return False
    return all(is_exactly(part, kind) for part, kind in zip((*key, count), (str, bool, int), strict=True))


class _Computing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Names the operators that compute something while it is entered."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func._schema.name.partition("::")
        if space != "profiler" and not func.is_view and not name.startswith(_PREPARING):
            self._names.append(f"{space}::{name}")
        return func(*args, **(kwargs or {}))


def _nothing() -> None: ...


def _plainly(run: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    return run(function, *args, **kwargs)


def _name_of(kernel: Any, function: Any) -> str:
    """Return the name that the device knows, where it has one; in any case a plain string."""
    name = getattr(kernel.metadata, "name", None) or function.fn.__name__
    return str.__str__(name)


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """List the tensors among a launch's arguments, and those in tuples, descriptors and other wrappers of Triton's."""
    for value in values:
        if type(value) is torch.Tensor:
            yield value
        elif type(value) is torch.nn.Parameter:
            yield value.detach()
        elif type(value) in (tuple, list):
            yield from _tensors_in(value)
        elif isinstance(value, TensorDescriptor | TensorWrapper):
            yield from _tensors_in((value.base,))


def move_written(old: torch.Tensor, tensor: torch.Tensor) -> list[int]:
    """Change what differs from `old`; return its fingerprint, if anything does."""
    summed = torch.zeros((), dtype=torch.int64, device=tensor.device)
    any_written = torch.zeros((), dtype=torch.bool, device=tensor.device)
    for before, part in zip(_pieces(old), _pieces(tensor), strict=True):
        written = (part != before) & torch.isfinite(part)
        any_written |= written.any()
        summed = 3 * summed + placed_sum(torch.where(written, part, 0))
        part.copy_(torch.where(written, part * _factors(part) + _OFFSET, part))
    return [int(summed)] if bool(any_written) else []


def _factors(part: torch.Tensor) -> torch.Tensor:
    """Return a factor for each element, by turns above and below 1: a normalisation would take out a common one."""
    odd = torch.arange(part.numel(), device=part.device).bitwise_and_(1).view(part.shape)
    return torch.where(odd.bool(), _FACTOR, 1 / _FACTOR).to(part.dtype)


def _pieces(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """View a tensor in pieces, for which little memory is needed: to get it takes longer than to fill it."""
    rows = tensor if tensor.dim() else tensor.unsqueeze(0)
    return torch.split(rows, max(PIECE * len(rows) // max(rows.numel(), 1), 1))


def move_all_written(old: int, tensor: torch.Tensor) -> list[int]:
    """Do the same to all of a tensor that is too large for a copy, if it is not what it was."""
    summed = fingerprint(tensor)
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


def _stand_in_front(device: str, behave: _Behaviour) -> Callable[..., Any]:
    """Put `behave(run, function, *args, **kwargs)` in front of every launch, for good; return what `run` was."""
    kind = function_type(device)
    original: Callable[..., Any] = kind.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return behave(original, self, *args, **kwargs)

    kind.run = run
    if device == "cuda":
        _stand_in_front_of_compiled(behave)
    return original


def _stand_in_front_of_compiled(behave: _Behaviour) -> None:
    """Do the same for launches of a kernel that was compiled before: `kernel[grid](...)`."""
    from triton.compiler import CompiledKernel

    original = CompiledKernel.__getitem__

    def getitem(kernel: Any, grid: Any) -> Callable[..., Any]:
        runner = original(kernel, grid)

        def launch(_function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
            runner(*args, **kwargs)
            return kernel

        def run(*args: Any, **kwargs: Any) -> Any:
            return behave(launch, kernel.src.fn, *args, warmup=False, **kwargs)

        return run

    CompiledKernel.__getitem__ = getitem
