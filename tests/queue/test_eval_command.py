"""`drkq eval` as people run it: from a shell, with no service, through the embedded stack."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drkernel_q.artefact import Artefacts
from drkernel_q.local import Place
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from tests.judging import EXAMPLES
from tests.need import PATIENT_S

pytestmark = [pytest.mark.slow, pytest.mark.redis]

SLEEPER = "import time, torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        time.sleep(1000)\n"
REFERENCE = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
#: Longest time for everything that a command started to be gone after it.
GONE_S = 90.0
FAST = ("--device", "cpu", "--timing-budget", "0.2")
GOOD = ("eval", str(EXAMPLES / "softmax.py"), "--problem", "softmax", "--json", *FAST)


def drkq(*arguments: str, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "drkernel_q", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)  # type: ignore[call-overload,no-any-return]


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENT_S)
    return process.returncode, out, err


def stack_processes() -> list[str]:
    """List the processes that have this test's runtime folder in their environment, and zygotes without a parent."""
    mark = f"XDG_RUNTIME_DIR={os.environ['XDG_RUNTIME_DIR']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            mine = mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid()
            if mine and b"defunct" not in (folder / "cmdline").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            orphan = "\nPPid:\t1\n" in (folder / "status").read_text()
            if orphan and b"workers.forkserver" in (folder / "cmdline").read_bytes():
                found.append(f"orphaned zygote {folder.name}")
        except OSError:
            continue
    return [name for name in found if name]


def wait_until_gone() -> None:
    deadline = time.monotonic() + GONE_S
    while (left := stack_processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    folder = Place(load_settings()).folder
    assert not [path.name for path in folder.glob("*") if path.name.endswith(".sock") or path.name == "token"]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Whatever a test does, what it started must be gone soon after."""
    yield
    wait_until_gone()


def wait_for_candidate(process: "subprocess.Popen[str]") -> None:
    """Wait until the worker is at the evaluation, as its log says, and the candidate has had the time to start."""
    log = Place(load_settings()).worker_log("cpu")
    deadline = time.monotonic() + 100
    while not (log.exists() and '"action": "begin"' in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)
    assert process.poll() is None


def test_kernels_are_judged_and_stored_and_commands_at_once_share_a_stack(tmp_path: Path) -> None:
    """Two stacks, since each takes seconds to start: one for the first command, one for four at once."""
    document, raw = judged_and_stored()
    wait_until_gone()
    again = answered_again(document, tmp_path)
    wait_until_gone()  # and the last of its results are stored
    with Store.open(load_settings().store) as store:
        reply = store.find(again["request_id"])
        assert reply is not None
        assert reply.measured_for == document["request_id"]
        assert store.artefacts(again["request_id"]) == raw


def judged_and_stored() -> tuple[dict[str, Any], Artefacts]:
    code, out, err = finish(drkq(*GOOD))
    assert code == 0, err
    document = json.loads(out)
    assert document["outcome"] == "correct"
    assert document["integrity"] == "clean"
    assert document["device"] == "cpu (interpreted)"
    assert document["correctness"]["passed"] == document["correctness"]["trials"] == 5
    assert document["timing"]["speedup_low"] <= document["speedup"] <= document["timing"]["speedup_high"]
    assert document["timing"]["checked"] >= 3
    assert document["profile_ratio"] > 0.98
    assert document["reward"] == pytest.approx(1 + document["speedup"] * document["profile_ratio"])
    assert document["error"] is None
    with Store.open(load_settings().store) as store:
        reply = store.find(document["request_id"])
        raw = store.artefacts(document["request_id"])
    assert reply is not None
    assert reply.evaluation is not None
    assert reply.evaluation.outcome.value == "correct"
    assert raw is not None, "raw measurements came with the reply, and only to the store"
    assert sum(map(len, raw.blocks["candidate"])) == document["timing"]["runs"]
    return document, raw


def answered_again(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Ask the same again, and at the same time for three that cannot be well judged."""
    (folder / "empty.py").write_text("")
    (folder / "list.py").write_text(REFERENCE + "def get_inputs():\n    return ['no tensor']\n")
    wrong, wrapper = str(EXAMPLES / "wrong.py"), str(EXAMPLES / "torch_wrapper.py")
    asked_again = drkq(*GOOD)
    bad = drkq("eval", wrong, str(folder / "empty.py"), "--problem", "softmax", "--jsonl", *FAST)
    cheat = drkq("eval", wrapper, "--problem", "softmax", *FAST)
    useless = drkq("eval", str(EXAMPLES / "softmax.py"), "--reference", str(folder / "list.py"), *FAST)
    code, out, err = finish(asked_again)
    assert code == 0, err
    again: dict[str, Any] = json.loads(out)
    assert (document["cached"], again["cached"]) == (False, True), (
        "the store knows it, though the broker is another one"
    )
    differ = {name for name in document if document[name] != again[name]}
    assert differ == {"cached", "request_id"}, "times and worker are those of the evaluation"
    code, out, err = finish(bad)
    assert code == 1, err
    assert {json.loads(line)["outcome"] for line in out.splitlines()} == {"wrong_value", "compile_error"}
    code, out, err = finish(cheat)
    assert code == 1, err
    assert "A4" in out
    code, out, err = finish(useless)
    assert code == 65, err
    assert "returns no tensor" in out + err
    assert "Traceback" not in err
    return again


def test_a_reference_that_is_no_python_is_one_sentence_and_65(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def get_inputs(:\n")
    kernel = str(EXAMPLES / "softmax.py")
    code, _, err = finish(drkq("eval", kernel, "--reference", str(tmp_path / "model.py"), *FAST))
    assert code == 65
    assert len(err.strip().splitlines()) == 1


def test_ctrl_c_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = drkq("eval", str(tmp_path / "sleeper.py"), "--problem", "softmax", *FAST)
    wait_for_candidate(process)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert "Traceback" not in err


def test_kill_9_of_the_command_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = drkq("eval", str(tmp_path / "sleeper.py"), "--problem", "softmax", *FAST)
    wait_for_candidate(process)
    process.kill()
    finish(process)


def test_kill_9_of_the_stack_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = drkq("eval", str(tmp_path / "sleeper.py"), "--problem", "softmax", *FAST)
    wait_for_candidate(process)
    (pid,) = (
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if f"XDG_RUNTIME_DIR={os.environ['XDG_RUNTIME_DIR']}".encode() in _read(folder / "environ").split(b"\0")
        and b"drkernel_q.local.stack" in _read(folder / "cmdline")
    )
    os.kill(pid, signal.SIGKILL)
    process.kill()
    finish(process)
    for name in ("control.sock", "broker.sock", "token"):  # a killed stack cannot tidy up; the next one does
        (Place(load_settings()).folder / name).unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
