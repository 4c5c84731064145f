"""`drkq up`, `down` and `status`, over a real stack and a real worker on the cpu device."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drkernel_q.errors import BadSettings, NoBroker

pytestmark = pytest.mark.redis


def drkq(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "drkernel_q", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def status() -> dict[str, Any]:
    done = drkq("status", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def down_at_the_end() -> Iterator[None]:
    yield
    drkq("down")


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_status_of_nothing_makes_nothing(own_folders: Path) -> None:
    before = sorted(own_folders.rglob("*"))
    found = status()
    assert (found["broker"], found["stack"], found["workers"], found["waiting"]) == (None, None, [], {})
    assert found["store"].endswith("drkq.sqlite")
    assert "none runs" in drkq("status").stdout
    assert sorted(own_folders.rglob("*")) == before


def test_down_of_nothing_is_no_error() -> None:
    done = drkq("down")
    assert (done.returncode, done.stdout) == (0, "")
    assert "Nothing was running." in done.stderr


@pytest.mark.parametrize("command", ["up", "down"])
def test_up_and_down_leave_a_cluster_alone(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_BROKER_URL", "redis://:secret@127.0.0.1:1/0")
    done = drkq(command)
    assert done.returncode == BadSettings.exit_code
    assert "secret" not in done.stderr


def test_status_of_a_broker_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_BROKER_URL", "redis://:secret@127.0.0.1:1/0")
    done = drkq("status")
    assert done.returncode == NoBroker.exit_code
    assert done.stdout == ""
    assert "secret" not in done.stderr


@pytest.mark.slow
def test_up_stays_until_down_and_leaves_nothing(down_at_the_end: None) -> None:
    done = drkq("up", "--device", "cpu")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Running: cpu." in done.stderr

    found = status()
    (worker,) = found["workers"]
    assert found["stack"]["kept"]
    assert (worker["device"], worker["state"], worker["request_id"]) == ("cpu", "idle", None)
    assert worker["versions"]["torch"]
    assert set(found["waiting"].values()) == {0}
    pids = [found["stack"]["pid"], worker["pid"]]
    assert all(alive(pid) for pid in pids)
    shown = drkq("status").stdout
    assert "cpu" in shown
    assert "token" not in json.dumps(found)

    doctor = {check["name"]: check for check in json.loads(drkq("doctor", "--json").stdout)}
    assert doctor["workers"]["state"] == "ok"
    assert "cpu of" in doctor["workers"]["found"]

    done = drkq("down")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "Stopped.")
    assert gone(pids)
    assert status()["stack"] is None
