"""Monitor: what the driver (NVML) says about one device: events, memory in use, whether it wants a reset.

Where NVML is missing, or refuses something (in many containers it does), that part stays silent. Nothing is ever
changed.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from workers.device import Device

_T = TypeVar("_T")

#: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, and those of its values (nvmlDeviceGpuRecoveryAction_t) before which the device
#: cannot be used. To drain traffic between devices is not among them.
_RECOVERY_ACTION = 230
_REMEDIES = {1: "a reset", 2: "a reboot", 4: "a reset", 6: "a reset of its bus", 7: "a reboot"}
#: Events after which a device is not used before its reset, for drivers that do not say so themselves. Source: NVIDIA's
#: catalogue of Xid errors.
FATAL_XIDS = frozenset({48, 64, 79, 95, 119, 120})
#: Events by which a faulty program loses its own context, and nobody else anything.
PROGRAM_XIDS = frozenset({13, 31, 43, 45})
#: Most events that are read at a time.
_MOST_EVENTS = 64


class Monitor:
    """Listens to the driver of one device; a device without one says nothing."""

    def __init__(self, device: Device) -> None:
        """Begin to listen; the driver reports only what happens from now on."""
        self._nvml: Any = None
        self._handle: Any = None
        self._events: Any = None
        if device.type == "cuda":
            self._open(device.identity)

    def _open(self, identity: str) -> None:
        try:
            import pynvml
        except ImportError:
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(identity)
            wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
            supported = pynvml.nvmlDeviceGetSupportedEventTypes(self._handle)
            events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(self._handle, wanted & supported, events)
            self._events = events
        except pynvml.NVMLError:
            return

    @property
    def hears_events(self) -> bool:
        """Whether errors that the driver knows of would be heard of."""
        return self._events is not None

    def xids(self) -> tuple[int, ...]:
        """Return the numbers of the errors that the driver has reported since the last call."""
        if self._events is None:
            return ()
        found = []
        for _ in range(_MOST_EVENTS):
            event = self._ask(lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0))  # raises when there is none
            if event is None:
                break
            double_bit = event.eventType & self._nvml.nvmlEventTypeDoubleBitEccError
            found.append(48 if double_bit else int(event.eventData))
        return tuple(found)

    def used_bytes(self) -> int | None:
        """Device memory in use, by anybody; None if that is not told."""
        return self._ask(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def processes(self) -> int | None:
        """Count the processes that compute on the device; None if that is not told."""
        return self._ask(lambda: len(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)))

    def uncorrected(self) -> int | None:
        """Count the errors of memory since the driver was loaded that could not be corrected."""
        nvml = self._nvml
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC) if nvml else ()
        return self._ask(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(self._handle, *kinds)))

    def verdict(self) -> str | None:
        """Say in a sentence why the driver does not want the device to be used; None if it has nothing against it."""
        if self._handle is None:
            return None
        nvml = self._nvml
        try:
            nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            return f"the driver says `{error}`"
        except nvml.NVMLError:
            pass
        fields = self._ask(lambda: nvml.nvmlDeviceGetFieldValues(self._handle, [_RECOVERY_ACTION]))
        if not fields or fields[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        remedy = _REMEDIES.get(int(fields[0].value.uiVal))
        return None if remedy is None else f"the driver asks for {remedy}"

    def _ask(self, question: Callable[[], _T]) -> _T | None:
        if self._handle is None:
            return None
        try:
            return question()
        except self._nvml.NVMLError:
            return None
