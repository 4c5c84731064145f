"""Device: which one a worker is bound to, what it is, and the lock that keeps others off it."""

import fcntl
import os
import re
import socket
from pathlib import Path
from typing import IO, NamedTuple

from drkernel_q.errors import DeviceBusy, MissingExtra, NoDevice
from drkernel_q.lock import Lease, cpu_identity, open_lock
from drkernel_q.queue.routing import capabilities

#: Most lanes that a device gets unasked: each holds device memory of its own.
MOST_LANES = 3
#: Queues of work that a process has to its device. The driver makes and destroys contexts one at a time for the whole
#: host, and each queue takes its share of that: with the eight of each kind that it would make, two devices get 5
#: contexts a second, and every evaluation needs two. Two leave room for two streams at a time. (docs/log.md)
_CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "2", "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "1"}


class Device(NamedTuple):
    """One device of this machine."""

    name: str
    """`cuda:N`, `cpu`, or `cpu:N` for a further worker on the same CPU."""
    identity: str
    """What it is locked by: a GPU's UUID, or its name."""
    device_name: str
    """Such as `NVIDIA H200`, or `cpu (interpreted)`."""
    device_kind: str
    """What results may be compared within: `sm_90/NVIDIA H200` or `cpu`."""
    capabilities: tuple[str, ...] = ()
    """Such as `sm_90` and `nvidia-h200`."""
    driver: str | None = None

    @property
    def type(self) -> str:
        """`cuda` or `cpu`."""
        return self.name.partition(":")[0]

    @property
    def environment(self) -> dict[str, str]:
        """What a process that works on this device and sees no other has in its environment before it imports anything.

        A number of connections that this process was given stays what it is.
        """
        visible = self.identity if self.type == "cuda" else ""
        connections = {name: os.environ.get(name, number) for name, number in _CONNECTIONS.items()}
        return {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | connections


def find_device(name: str) -> Device:
    """Look a device up.

    Raises:
        NoDevice: this machine has no such device.
    """
    if re.fullmatch("cpu(:[0-9]+)?", name):
        return Device(name, cpu_identity(name), "cpu (interpreted)", "cpu")
    if re.fullmatch("cuda:[0-9]+", name):
        return _find_cuda(name, int(name.removeprefix("cuda:")))
    raise NoDevice(f"`{name}` is no device; devices are called cpu or cuda:0, cuda:1 and so on.")


def _find_cuda(name: str, index: int) -> Device:
    try:
        import pynvml
    except ImportError as error:
        raise MissingExtra("nvidia-ml-py is not installed; add it with `pip install 'drkq[worker]'`.") from error
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        if index >= count:
            raise NoDevice(f"There is no {name}: the driver knows {count} device(s).")
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        model = pynvml.nvmlDeviceGetName(handle)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        raise NoDevice(f"There is no {name}: NVML says `{error}`.") from None
    capability = f"sm_{major}{minor}"
    return Device(name, uuid, model, f"{capability}/{model}", capabilities(capability, model), driver)


def lock_device(device: Device, folder: Path) -> IO[str]:
    """Lock a device for as long as the returned file stays open in this process; the kernel frees it on any death.

    Raises:
        DeviceBusy: another worker holds it; the message says which process.
    """
    file = open_lock(folder, f"{device.identity}.lock")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = file.read(200).strip() or "another process"
        file.close()
        raise DeviceBusy(f"{device.name} is held by {holder}; one worker a device is the rule.") from None
    if file.writable():
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
    return file


def lanes_of(device: Device, asked: int) -> int:
    """Return how many evaluations a device has in hand at a time: `asked`, or what the host has cores for if that is 0.

    Each lane compiles in two processes while others are timed, which takes one of them at a time.
    """
    if asked or device.type == "cpu":
        return asked or 1
    import pynvml

    pynvml.nvmlInit()
    cores = len(os.sched_getaffinity(0)) // max(int(pynvml.nvmlDeviceGetCount()), 1)
    return max(min(cores // 3, MOST_LANES), 1)


def lane_id(worker_id: str, number: int, lanes: int) -> str:
    """Name a lane of a worker, from 0 on; a worker of one lane is that lane."""
    return worker_id if lanes == 1 else f"{worker_id}.{number}"


def device_lease(device: Device, folder: Path) -> Lease:
    """Open the lease on keeping a device busy, which evaluations share."""
    return Lease(folder, device.identity if device.type == "cuda" else cpu_identity())
