"""Checkpoints are whole or are passed over, and another configuration is refused by name."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drkernel_q.errors import BadSettings
from policy.training import checkpoint
from policy.training.checkpoint import MANIFEST, Manifest, refuse_differences

KILLED = """
import os, signal, sys
from pathlib import Path
from policy.training import checkpoint

def write(folder):
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)

manifest = checkpoint.Manifest(step=2, cursor=8, policy_version=2, config={}, files={})
checkpoint.save(Path(sys.argv[1]), manifest, write, keep=2)
"""


def save(root: Path, step: int, keep: int = 2) -> checkpoint.Checkpoint:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(bytes([step]) * 1000)
        (folder / "state.pt").write_bytes(b"state")

    manifest = Manifest(step=step, cursor=4 * step, policy_version=step, config={"lr": 1e-6}, files={})
    return checkpoint.save(root, manifest, write, keep=keep)


def test_the_newest_is_found_and_old_ones_go(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nowhere") is None
    saved = [save(tmp_path, step) for step in (1, 2, 3)]
    assert checkpoint.latest(tmp_path) == saved[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]
    found = saved[-1].manifest
    assert (found.step, found.cursor, found.policy_version, found.config) == (3, 12, 3, {"lr": 1e-6})
    assert sorted(found.files) == ["model.safetensors", "state.pt"]


def test_a_step_that_is_saved_again_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step_000001" / "model.safetensors").write_bytes(b"spoilt")
    assert checkpoint.latest(tmp_path) is None
    assert save(tmp_path, 1) == checkpoint.latest(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "no manifest", "half a manifest", "another format"])
def test_what_is_not_whole_is_passed_over(tmp_path: Path, damage: str) -> None:
    good, bad = save(tmp_path, 1), save(tmp_path, 2).folder
    weights, manifest = bad / "model.safetensors", bad / MANIFEST
    if damage == "cut":
        os.truncate(weights, 999)
    elif damage == "changed":
        weights.write_bytes(b"\x02" * 999 + b"\x03")
    elif damage == "missing":
        weights.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        os.truncate(manifest, 50)
    else:
        manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    assert checkpoint.latest(tmp_path) == good


def test_a_process_that_is_killed_while_it_saves_leaves_the_one_before(tmp_path: Path) -> None:
    good = save(tmp_path, 1)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert checkpoint.latest(tmp_path) == good


def test_the_same_configuration_is_taken_in_any_form() -> None:
    refuse_differences({"a": {"b": [1, 2], "c": None}}, {"a": {"b": (1, 2)}})


def test_differences_are_named_with_both_values() -> None:
    saved = {"optimizer": {"lr": 1e-6, "beta": 0.9}, "steps": 10, "checkpoint": {"every": 1}, "seed": 1}
    now = {"optimizer": {"lr": 1e-5, "beta": 0.9}, "steps": 20, "checkpoint": {"every": 2}, "lora": {"rank": 8}}
    with pytest.raises(BadSettings) as refused:
        refuse_differences(saved, now, free=("steps", "checkpoint"))
    said = str(refused.value)
    assert "optimizer.lr was 1e-06 and is 1e-05" in said
    assert "lora.rank was not set and is 8" in said
    assert "seed was 1 and is not set" in said
    assert "steps" not in said
    assert "every" not in said
