"""What the driver says: read through NVML where it answers, and silence where it does not."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from workers.device import Device, find_device
from workers.monitor import Monitor

GPU = Device("cuda:0", "GPU-1", "NVIDIA H200", "sm_90/NVIDIA H200")


class Driver:
    """NVML for one device, as far as the monitor asks; a call that is among `refused` raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[int, int]] = []
        self.used = 5 * 2**30
        self.computing = 2
        self.uncorrected = 0
        self.recovery = 0
        self.refused: dict[str, type[Exception]] = {}
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetSupportedEventTypes": lambda _: 0xFF,
            "nvmlEventSetCreate": list,
            "nvmlDeviceRegisterEvents": lambda *_: None,
            "nvmlEventSetWait_v2": self._event,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=self.used),
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [None] * self.computing,
            "nvmlDeviceGetTotalEccErrors": lambda *_: self.uncorrected,
            "nvmlDeviceGetFieldValues": self._fields,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, self._refusing(name, answer))

    def _refusing(self, name: str, answer: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if name in self.refused:
                raise self.refused[name]
            return answer(*arguments)

        return call

    def _event(self, _set: Any, _timeout_ms: int) -> Any:
        if not self.events:
            raise pynvml.NVMLError_Timeout
        kind, data = self.events.pop(0)
        return SimpleNamespace(eventType=kind, eventData=data)

    def _fields(self, _: Any, wanted: list[int]) -> list[Any]:
        assert wanted == [230]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.recovery))]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_the_cpu_says_nothing() -> None:
    monitor = Monitor(find_device("cpu"))
    assert (monitor.xids(), monitor.used_bytes(), monitor.processes()) == ((), None, None)
    assert (monitor.uncorrected(), monitor.verdict(), monitor.hears_events) == (None, None, False)


def test_events_are_told_once(driver: Driver) -> None:
    monitor = Monitor(GPU)
    assert monitor.hears_events
    assert monitor.xids() == ()
    xid, double_bit = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeDoubleBitEccError
    driver.events = [(xid, 31), (xid, 43), (double_bit, 0)]
    assert monitor.xids() == (31, 43, 48)
    assert monitor.xids() == ()


def test_an_endless_stream_of_events_ends(driver: Driver) -> None:
    driver.events = [(pynvml.nvmlEventTypeXidCriticalError, 13)] * 1000
    assert 0 < len(Monitor(GPU).xids()) < 1000


def test_numbers_are_the_drivers(driver: Driver) -> None:
    monitor = Monitor(GPU)
    driver.uncorrected = 4
    assert (monitor.used_bytes(), monitor.processes(), monitor.uncorrected()) == (5 * 2**30, 2, 4)
    assert monitor.verdict() is None


@pytest.mark.parametrize(
    ("action", "verdict"), [(0, None), (1, "a reset"), (2, "a reboot"), (3, None), (4, "a reset"), (99, None)]
)
def test_the_driver_may_ask_for_a_reset(driver: Driver, action: int, verdict: str | None) -> None:
    driver.recovery = action
    assert Monitor(GPU).verdict() == (verdict and f"the driver asks for {verdict}")


@pytest.mark.parametrize("error", [pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired])
def test_a_lost_device_is_told(driver: Driver, error: type[Exception]) -> None:
    monitor = Monitor(GPU)
    driver.refused = {"nvmlDeviceGetMemoryInfo": error}
    assert str(monitor.verdict()).startswith("the driver says `")
    assert monitor.used_bytes() is None


@pytest.mark.parametrize(
    "name",
    [
        "nvmlInit",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlEventSetCreate",
        "nvmlDeviceRegisterEvents",
    ],
)
def test_what_is_refused_is_silence(driver: Driver, name: str) -> None:
    driver.refused = {name: pynvml.NVMLError_NoPermission}
    driver.events = [(pynvml.nvmlEventTypeXidCriticalError, 79)]
    monitor = Monitor(GPU)
    assert not monitor.hears_events
    assert monitor.xids() == ()
    for each in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetTotalEccErrors"):
        driver.refused[each] = pynvml.NVMLError_NotSupported
    driver.refused["nvmlDeviceGetFieldValues"] = pynvml.NVMLError_NotSupported
    assert (monitor.used_bytes(), monitor.processes(), monitor.uncorrected()) == (None, None, None)
    assert monitor.verdict() is None
