"""Fault: how a candidate's process ended against its will, in one word that programs can read.

`cuda:illegal_address` is an error of the device, `signal:SIGSEGV` the signal that the process died of, `exit:3` an end
of its own making, `deadline` no answer in time, `host:out_of_memory` more memory than it may hold, `nonsense` a reply
that is none. An error of the device is what the process says, so it can be invented; nothing good comes of one.
"""

import os
import signal
from collections.abc import Callable

DEADLINE = "deadline"
HOST_MEMORY = "host:out_of_memory"
DEVICE_MEMORY = "cuda:out_of_memory"
NONSENSE = "nonsense"
#: Codes with which a candidate's process ends at once: when a candidate's code acts on the harness's thread, and when
#: it asks for what leads there. Each with what has been changed by that (`workers.harness.state.CODES`).
TAMPERED, SPIED = 79, 80
ENDS = {f"exit:{TAMPERED}": "functions", f"exit:{SPIED}": "introspection"}

#: Errors that cost a process its context: whatever it asks of the device from then on fails with the same error.
#: Source: cudaError_t in driver_types.h; CUresult in cuda.h has the same numbers.
_LOSING = {
    214: "ecc_uncorrectable",
    220: "nvlink_uncorrectable",
    226: "contained",
    700: "illegal_address",
    702: "launch_timeout",
    709: "context_is_destroyed",
    710: "assert",
    714: "hardware_stack_error",
    715: "illegal_instruction",
    716: "misaligned_address",
    717: "invalid_address_space",
    718: "invalid_pc",
    719: "launch_failure",
    721: "tensor_memory_leak",
    999: "unknown",
}
#: Errors of one call.
_PASSING = {
    1: "invalid_value",
    2: "out_of_memory",
    9: "invalid_configuration",
    46: "devices_unavailable",
    98: "invalid_device_function",
    100: "no_device",
    200: "invalid_image",
    209: "no_kernel_image_for_device",
    218: "invalid_ptx",
    300: "invalid_source",
    304: "operating_system",
    400: "invalid_handle",
    500: "symbol_not_found",
    701: "launch_out_of_resources",
    720: "cooperative_launch_too_large",
    800: "not_permitted",
    801: "not_supported",
    802: "system_not_ready",
    900: "stream_capture_unsupported",
    901: "stream_capture_invalidated",
    912: "invalid_cluster_size",
}
_NAMES = _LOSING | _PASSING
_KNOWN = {f"cuda:{name}" for name in _NAMES.values()} | {"cuda:other"}
_LOST = {f"cuda:{name}" for name in _LOSING.values()}
#: Errors that no kernel brings about.
_OF_THE_DEVICE = frozenset(
    f"cuda:{name}"
    for name in (
        *("ecc_uncorrectable", "nvlink_uncorrectable", "contained"),
        *("devices_unavailable", "no_device", "system_not_ready"),
    )
)
#: What torch and Triton's launcher put in front of the words of the driver, and those words.
_PREFIXES = ("CUDA error: ", "Triton Error [CUDA]: ")
_WORDS = {
    "invalid argument": 1,
    "out of memory": 2,
    "invalid configuration argument": 9,
    "uncorrectable ECC error encountered": 214,
    "too many resources requested for launch": 701,
    "misaligned address": 716,
    "an illegal memory access was encountered": 700,
    "an illegal instruction was encountered": 715,
    "device-side assert triggered": 710,
    "the launch timed out and was terminated": 702,
    "unspecified launch failure": 719,
}


def of_exception(error: BaseException, query: Callable[[], object]) -> str | None:
    """Name the error of the device behind an exception; None when it is one of Python alone.

    `query` asks the device without waiting (torch's `Stream.query`): if the context is lost, that raises, whatever the
    exception says.
    """
    try:
        query()
    except Exception as lost:  # noqa: BLE001 - of whatever class, it is what the device says
        return _named(lost) or "cuda:unknown"
    try:
        return _named(error)
    except BaseException:  # noqa: BLE001 - the attributes of a candidate's exception are its own code
        return None


def _named(error: BaseException) -> str | None:
    if isinstance(error, MemoryError):
        return HOST_MEMORY
    if type(error).__name__ == "OutOfMemoryError":
        return DEVICE_MEMORY
    number = getattr(error, "error_code", None)  # of torch.AcceleratorError, where it has one
    line = str(error).partition("\n")[0]
    prefix = next((prefix for prefix in _PREFIXES if line.startswith(prefix)), None)
    if number is None and prefix is not None:
        number = _WORDS.get(line.removeprefix(prefix).strip(), -1)
    return None if not isinstance(number, int) else f"cuda:{_NAMES.get(number, 'other')}"


def of_status(status: int, last_words: str = "") -> str:
    """Name the end of a process that should have gone on, from its wait status.

    `last_words` are those of trusted code: an exception may have ended it for want of memory that others have.
    """
    if not os.WIFSIGNALED(status):
        if "CUDA" in last_words and "out of memory" in last_words:
            return DEVICE_MEMORY
        return f"exit:{os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    try:
        return f"signal:{signal.Signals(number).name}"
    except ValueError:  # most real-time signals have no name
        return f"signal:{number}"


def claimed(value: object) -> str | None:
    """Return a fault that a candidate's process reports of itself, None for anything else."""
    return value if isinstance(value, str) and value in _KNOWN | {HOST_MEMORY} else None


def describe(fault: str) -> str:
    """Say in words what an error of the device is called, for people; empty for any other fault."""
    return f"CUDA error: {fault.removeprefix('cuda:').replace('_', ' ')}" if fault.startswith("cuda:") else ""


def loses_context(fault: str | None) -> bool:
    """Whether nothing works any more in the process that met it."""
    return fault in _LOST


def is_abnormal(fault: str | None) -> bool:
    """Whether the device should be looked at before it is trusted with anything else."""
    return fault is not None and (not fault.startswith("cuda:") or fault in _LOST | _OF_THE_DEVICE | {"cuda:other"})


def is_of_the_device(fault: str | None) -> bool:
    """Whether the device or its driver is to blame, and no kernel."""
    return fault in _OF_THE_DEVICE


def xid(number: int) -> str:
    """Name an event that only the driver has reported."""
    return f"xid:{number}"
