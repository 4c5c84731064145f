"""A `torch.cuda` for a machine without a GPU: one device, on which everything is done when the host goes on."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.cuda.nvtx

from workers.cpu.hosttensor import CUDA, replace

#: Compute capability: Hopper, so that a program takes the branch that it takes on the GPUs drkq trains for.
CAPABILITY = (9, 0)
#: Few, because programs of a persistent kernel run one after the other here.
MULTIPROCESSORS = 8
NAME = "CPU (Triton interpreter)"


@dataclass(frozen=True)
class DeviceProperties:
    """What `torch.cuda.get_device_properties` answers; limits are those of a Hopper GPU."""

    name: str = NAME
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    total_memory: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    multi_processor_count: int = MULTIPROCESSORS
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 * 2**10
    shared_memory_per_block_optin: int = 227 * 2**10
    shared_memory_per_multiprocessor: int = 228 * 2**10
    L2_cache_size: int = 50 * 2**20
    is_integrated: int = 0
    is_multi_gpu_board: int = 0


class Stream:
    """A stream on which everything is done by the time the host goes on."""

    device = CUDA
    device_index = 0
    cuda_stream = 0
    stream_id = 0
    priority = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Accept whatever `torch.cuda.Stream` accepts."""

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def synchronize(self) -> None:
        """Wait for nothing."""

    wait_stream = wait_event = lambda self, _other: None

    def query(self) -> bool:
        """Return that all work is done."""
        return True

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record `event`, or a new one."""
        event = event or Event()
        event.record()
        return event


class Event:
    """An event that reads the host's clock."""

    cuda_event = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Accept whatever `torch.cuda.Event` accepts."""
        self._recorded_s: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Note the time."""
        self._recorded_s = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait(self, stream: Stream | None = None) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Return that all work is done."""
        return True

    def elapsed_time(self, end_event: "Event") -> float:
        """Return the milliseconds from this event to `end_event`."""
        if self._recorded_s is None or end_event._recorded_s is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded_s - self._recorded_s) * 1e3


class StreamContext(contextlib.nullcontext[Stream | None]):
    """Entering a stream changes nothing."""


def install() -> None:
    """Replace `torch.cuda`, and what else answers for the machine's GPU."""
    for module, replacements in (
        (torch.cuda, _cuda_functions()),
        (torch.cuda.nvtx, _answers("range_push range_pop range_start range_end mark", 0)),
        (torch.accelerator, _accelerator_functions()),
        (torch.backends.cudnn, _answers("is_acceptable", False)),
    ):
        replace(module, replacements)


def _answers(names: str, value: Any = None) -> dict[str, Callable[..., Any]]:
    """Make one function for each name that takes anything and returns `value`.

    Functions of their own, because torch's compiler refuses to load when two of torch's names are one object.
    """
    return {name: _answer(value) for name in names.split()}


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _cuda_functions() -> dict[str, Any]:
    properties = DeviceProperties()
    memory_bytes = properties.total_memory
    return {
        **_answers("synchronize empty_cache init _lazy_init set_device set_stream set_sync_debug_mode ipc_collect"),
        **_answers("reset_peak_memory_stats reset_accumulated_memory_stats reset_max_memory_allocated"),
        **_answers("current_device _exchange_device _maybe_exchange_device", 0),
        **_answers("current_stream default_stream", Stream()),
        **_answers("device_count", 1),
        **_answers("get_device_capability", CAPABILITY),
        **_answers("get_device_name", NAME),
        **_answers("get_device_properties", properties),
        **_answers("is_available is_bf16_supported", True),
        **_answers("is_current_stream_capturing", False),
        **_answers("mem_get_info", (memory_bytes, memory_bytes)),
        **{name: vars(torch)[name] for name in vars(torch.cuda) if name.endswith("Tensor") and name in vars(torch)},
        **_random_functions(),
        "Event": Event,
        "Stream": Stream,
        "StreamContext": StreamContext,
        "stream": _stream,
    }


def _stream(stream: Stream | None) -> StreamContext:
    return StreamContext(stream)


def _random_functions() -> dict[str, Any]:
    """One generator is that of the CPU and of CUDA."""
    generator = torch.default_generator
    return {
        "default_generators": (generator,),
        "get_rng_state": lambda device=None: generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "initial_seed": generator.initial_seed,
        "manual_seed": lambda seed: generator.manual_seed(int(seed)),
        "manual_seed_all": lambda seed: generator.manual_seed(int(seed)),
        "seed": generator.seed,
        "set_rng_state": lambda state, device=None: generator.set_state(state),
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
    }


def _accelerator_functions() -> dict[str, Any]:
    return {
        **_answers("current_accelerator", torch.device("cuda")),
        **_answers("current_device_index", 0),
        **_answers("device_count", 1),
        **_answers("is_available", True),
        **_answers("synchronize"),
    }
