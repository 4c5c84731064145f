"""`drkq up`, `down` and `status`, over a real stack and a real worker on the cpu device."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from drkernel_q.cli import drkq as group
from drkernel_q.errors import BadSettings, NoBroker, Unavailable

pytestmark = pytest.mark.redis


def drkq(*args: str) -> Result:
    """Run a command in this process: what is there to see of it is the same, and nothing is imported again."""
    return CliRunner().invoke(group, args)


def status() -> dict[str, Any]:
    done = drkq("status", "--json")
    assert done.exit_code == 0, done.stderr
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


def gone(pids: list[int], within_s: float = 30.0) -> bool:
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
    assert (done.exit_code, done.stdout) == (0, "")
    assert "Nothing was running." in done.stderr


def docker(folder: Path, code: int) -> str:
    """Make a `docker` that writes down what it is asked, and ends with a code; return a PATH that begins with it."""
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\nexit {code}\n')
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_up_by_compose_makes_passwords_once_and_says_what_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no compose.yaml" in drkq("up", "--compose").stderr
    (tmp_path / "compose.yaml").touch()
    monkeypatch.setenv("PATH", docker(tmp_path, 0))
    devices = ("--device", "cuda:0", "--device", "cuda:3", "--device", "cpu")
    done = drkq("up", "--compose", *devices, "--profile", "train")
    assert done.exit_code == 0, done.stderr
    expected = "compose --profile gpu-0 --profile gpu-3 --profile cpu --profile train up --build --detach --wait"
    assert (tmp_path / "asked").read_text() == f"{expected}\n"
    assert f"$ docker {expected}\n" in done.stderr
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(made) == {"redis-password", "worker-password", "postgres-password", "gateway-tokens"}
    assert len(set(made.values())) == len(made)
    assert not [text for text in made.values() if text.strip() in done.stderr]
    assert drkq("down", "--compose").exit_code == 0
    assert (tmp_path / "asked").read_text() == "compose --profile * down\n"
    assert drkq("up", "--compose").exit_code == 0
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == made


def test_up_by_compose_without_docker_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compose.yaml").touch()
    monkeypatch.setenv("PATH", docker(tmp_path, 125))
    done = drkq("up", "--compose")
    assert (done.exit_code, "docker ended with code 125" in done.stderr) == (Unavailable.exit_code, True)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    done = drkq("up", "--compose")
    assert (done.exit_code, "docker is not installed" in done.stderr) == (Unavailable.exit_code, True)
    assert "Traceback" not in done.stderr
    assert drkq("up", "--profile", "train").exit_code == click.UsageError.exit_code


@pytest.mark.parametrize("command", ["up", "down"])
def test_up_and_down_leave_a_cluster_alone(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_BROKER_URL", "redis://:secret@127.0.0.1:1/0")
    done = drkq(command)
    assert done.exit_code == BadSettings.exit_code
    assert "secret" not in done.stderr


def test_status_of_a_broker_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_BROKER_URL", "redis://:secret@127.0.0.1:1/0")
    done = drkq("status")
    assert done.exit_code == NoBroker.exit_code
    assert done.stdout == ""
    assert "secret" not in done.stderr


@pytest.mark.slow
def test_up_stays_until_down_and_leaves_nothing(down_at_the_end: None) -> None:
    command = [sys.executable, "-m", "drkernel_q", "up", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
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
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, "Stopped.")
    assert gone(pids)
    assert status()["stack"] is None
