"""The CPU device: candidates written for a GPU run unchanged on CPU tensors, in Triton's interpreter.

Call `prepare` before triton is imported and `install` after it, once in a process; forks of that process have
the device too. What works and what does not: docs/reference/cpu-device.md.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


def prepare() -> None:
    """Make triton interpret kernels when it is imported.

    Raises:
        RuntimeError: triton is imported already, and compiles kernels.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    if "triton" in sys.modules and not _interprets():
        raise RuntimeError("triton was imported before workers.cpu.interpreter.prepare(), so it compiles kernels")


def install() -> None:
    """Make this process a CPU device, for good: torch answers for a GPU, and kernels run in the interpreter.

    Raises:
        RuntimeError: triton was imported without `prepare`.
    """
    if not _interprets():
        raise RuntimeError("triton was imported without workers.cpu.interpreter.prepare(), so it compiles kernels")
    import triton
    from triton.runtime import autotuner, interpreter

    from workers.cpu import fakecuda, hosttensor, numerics

    # Kernels are interpreted from now on even where a candidate's environment does not say so.
    triton.knobs.runtime.interpret = True
    hosttensor.install()
    fakecuda.install()
    numerics.install()
    _patch_language_once()
    # The check of each integer operation for overflow takes a third of a kernel's time, and only debugging heeds it.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    # The interpreter's host is where the tensors are: it has nothing to copy there and back.
    interpreter.GridExecutor._init_args_hst = lambda self, args, kwargs: (list(args), dict(kwargs))
    interpreter.GridExecutor._restore_args_dev = lambda self, *args: None
    interpreter.InterpretedFunction.run = _quiet_run(interpreter.InterpretedFunction.run)
    autotuner.Autotuner._bench = _estimate
    triton.runtime.driver.set_active(_driver())


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a Triton kernel."""

    name: str
    """The kernel function's name."""
    file: str
    """The file that the function was defined in."""
    seconds: float
    """Wall time of the launch."""


class LaunchRecorder:
    """Records the Triton launches of this process that finish while it is entered.

    ```python
    with LaunchRecorder() as launches:
        model(x)
    busy_s = sum(launch.seconds for launch in launches)
    ```
    """

    def __init__(self, annotate: str | None = None) -> None:
        """Also name launches to torch's profiler, by `annotate` and the kernel's name, unless it is None."""
        self._annotate = annotate

    def __enter__(self) -> list[Launch]:
        """Start recording into the returned list."""
        from triton.runtime.interpreter import InterpretedFunction

        launches: list[Launch] = []
        run = self._run = InterpretedFunction.run

        def recorded_run(function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup:
                return run(function, *args, warmup=warmup, **kwargs)
            name, file = function.fn.__name__, function.fn.__code__.co_filename
            with self._shown(name):
                started_s = time.perf_counter()
                result = run(function, *args, warmup=warmup, **kwargs)
                launches.append(Launch(name, file, time.perf_counter() - started_s))
            return result

        InterpretedFunction.run = recorded_run
        return launches

    def __exit__(self, *exc_info: object) -> None:
        """Stop recording."""
        from triton.runtime.interpreter import InterpretedFunction

        InterpretedFunction.run = self._run

    def _shown(self, name: str) -> AbstractContextManager[Any]:
        if self._annotate is None:
            return nullcontext()
        from torch.profiler import record_function

        return record_function(self._annotate + name)


@dataclass
class CompiledKernel:
    """What a launch or a warm-up returns: the answers of a small kernel, and a way to launch it."""

    function: Any
    n_regs: int = 32
    n_spills: int = 0
    n_max_threads: int = 1024
    asm: dict[str, str] = field(default_factory=dict)
    metadata: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(shared=0, num_warps=4, num_stages=3, num_ctas=1)
    )

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """Return the launcher for `grid`."""
        launcher: Callable[..., Any] = self.function[grid]
        return launcher

    def _init_handles(self) -> None:
        """Load nothing; Triton's own tutorials call this."""


def _interprets() -> bool:
    from triton.language import standard

    return type(standard.sum).__name__ == "InterpretedFunction"


def _patch_language_once() -> None:
    """Keep `triton.language` patched, which the interpreter does anew for each launch and each inner call.

    It also makes the interpreter find the language whatever name the candidate imported it by.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    unchanged = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda fn: unchanged


def _quiet_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """Run without NumPy's floating point warnings, and return what a launch on a GPU returns."""
    import numpy as np

    def quiet_run(function: Any, *args: Any, **kwargs: Any) -> CompiledKernel:
        with np.errstate(all="ignore"):
            run(function, *args, **kwargs)
        return CompiledKernel(function)

    return quiet_run


def _estimate(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """Rate a config without a launch: the interpreter is the faster the larger the blocks are.

    A trial of each config would cost seconds, and the ranking would say nothing about a GPU.
    """
    sizes: Iterable[Any] = (value for value in config.kwargs.values() if type(value) is int and value > 0)
    return [1 / math.prod(sizes)] * 3


def _driver() -> Any:
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import GPUDriver
    from triton.testing import do_bench

    from workers.cpu import fakecuda
    from workers.cpu.hosttensor import CUDA

    major, minor = fakecuda.CAPABILITY
    properties = {
        "max_shared_mem": fakecuda.DeviceProperties.shared_memory_per_block_optin,
        "max_num_regs": fakecuda.DeviceProperties.regs_per_multiprocessor,
        "multiprocessor_count": fakecuda.MULTIPROCESSORS,
        "warpSize": fakecuda.DeviceProperties.warp_size,
        "sm_clock_rate": 1_980_000,
        "mem_clock_rate": 3_201_000,
        "mem_bus_width": 6144,
    }

    class CpuDriver(GPUDriver):  # type: ignore[misc]  # triton has no types
        """Triton's view of the device; the stand-ins of torch.cuda answer for the rest."""

        utils = SimpleNamespace(get_device_properties=lambda device: properties)

        def __init__(self) -> None:
            super().__init__()
            self.get_current_stream = lambda device=None: 0

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError("the CPU device compiles nothing")

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 10 * major + minor, 32)

        def get_active_torch_device(self) -> torch.device:
            return CUDA

        def get_device_interface(self) -> Any:
            return torch.cuda

        def get_benchmarker(self) -> Any:
            return do_bench

        def get_empty_cache_for_benchmark(self) -> torch.Tensor:
            return torch.empty(0)

        def clear_cache(self, cache: torch.Tensor) -> None: ...

    return CpuDriver()
