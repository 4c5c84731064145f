"""Devices: how they are called, and that each has one worker."""

import os
import socket
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from drkernel_q.errors import DeviceBusy, NoDevice
from tests.need import cuda
from workers.device import Device, find_device, lock_device

HOLD = """
    import sys
    from pathlib import Path
    from workers.device import find_device, lock_device
    lock = lock_device(find_device("cpu"), Path(sys.argv[1]))
    print("locked", flush=True)
    input()
"""


def hold(folder: Path) -> "subprocess.Popen[str]":
    """Let another process lock the cpu until it ends."""
    command = [sys.executable, "-c", textwrap.dedent(HOLD), str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_the_cpu_has_any_number_of_places() -> None:
    first, second = find_device("cpu"), find_device("cpu:1")
    assert (first.type, second.type) == ("cpu", "cpu")
    assert first.device_kind == second.device_kind == "cpu"
    assert first.device_name == "cpu (interpreted)"
    assert first.identity != second.identity
    assert first.environment["CUDA_VISIBLE_DEVICES"] == "", "no GPU is shown to work that belongs on the cpu"


@pytest.mark.parametrize(
    "name", ["", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cpu:", "cpu:x", "cpu:1 ", "CPU", "cuda:0:1"]
)
def test_what_is_no_device_is_told(name: str) -> None:
    with pytest.raises(NoDevice, match=r"is no device; devices are called cpu or cuda:0"):
        find_device(name)


@pytest.mark.skipif(cuda(), reason="there is a CUDA device here")
def test_a_missing_gpu_is_told() -> None:
    with pytest.raises(NoDevice, match="There is no cuda:0"):
        find_device("cuda:0")


@pytest.mark.gpu
def test_a_gpu_is_known_by_its_identity() -> None:
    device = find_device("cuda:0")
    assert device.identity.startswith(("GPU-", "MIG-"))
    assert device.environment["CUDA_VISIBLE_DEVICES"] == device.identity
    assert device.device_kind.startswith("sm_")
    with pytest.raises(NoDevice, match="There is no cuda:99: the driver knows"):
        find_device("cuda:99")


def test_a_device_has_one_worker(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "locks"
    process = hold(folder)
    with pytest.raises(DeviceBusy, match=f"cpu is held by process {process.pid} on {socket.gethostname()}"):
        lock_device(find_device("cpu"), folder)
    lock_device(find_device("cpu:1"), folder).close()
    end(process)
    lock_device(find_device("cpu"), folder).close()


def test_a_lock_ends_with_its_file_and_not_with_a_child_that_was_started(tmp_path: Path) -> None:
    lock = lock_device(find_device("cpu"), tmp_path)
    with pytest.raises(DeviceBusy, match=f"process {os.getpid()}"):
        lock_device(find_device("cpu"), tmp_path)
    with subprocess.Popen(["sleep", "100"], close_fds=False) as child:
        lock.close()
        lock_device(find_device("cpu"), tmp_path).close()
        child.kill()


def test_the_same_gpu_is_locked_whatever_it_is_called(tmp_path: Path) -> None:
    first = Device("cuda:0", "GPU-1", "NVIDIA H200", "sm_90/NVIDIA H200")
    lock = lock_device(first, tmp_path)
    with pytest.raises(DeviceBusy, match="cuda:3 is held by"):
        lock_device(first._replace(name="cuda:3"), tmp_path)
    lock.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_users_lock_each_other_out(tmp_path: Path, umask: int) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    folder = tmp_path / "locks"
    old = os.umask(umask)
    try:
        lock = lock_device(find_device("cpu"), folder)
        assert as_nobody(lambda: lock_device(find_device("cpu"), folder)).startswith("DeviceBusy: cpu is held by proc")
        lock.close()
        assert as_nobody(lambda: lock_device(find_device("cpu"), folder)) == "done"
        assert as_nobody(lambda: lock_device(find_device("cpu:1"), folder)) == "done"
        lock_device(find_device("cpu:1"), folder).close()
    finally:
        os.umask(old)


def as_nobody(action: Callable[[], object]) -> str:
    """Do something as another user, in a fork; return `done` or the error."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            action()
            os.write(writer, b"done")
        except BaseException as error:  # noqa: BLE001 - a fork of a test must end here
            os.write(writer, traceback.format_exception_only(error)[-1].rpartition("errors.")[2].encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as report:
        text = report.read()
    os.waitpid(pid, 0)
    return text
