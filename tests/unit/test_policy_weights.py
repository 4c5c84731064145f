"""Publishing weights: whole or not at all, acknowledged, and never removed under a reader."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from drkernel_q.errors import BadSettings, NoSampler
from policy.training.weights import READY, WeightFolder
from tests.need import PATIENT_S

READER = """
import sys, time
from pathlib import Path
from policy.training.weights import WeightFolder
folder, last = WeightFolder(Path(sys.argv[1])), 0
while last < 3:
    newest = folder.latest()
    if newest and newest.version > last:
        assert (newest.folder / "model.safetensors").read_text() == f"weights {newest.version}"
        folder.acknowledge(newest.version, "http://reader:8000/v1")
        last = newest.version
    time.sleep(0.01)
"""


def write(folder: Path, text: str = "weights") -> None:
    (folder / "model.safetensors").write_text(text)


def test_a_version_is_whole_or_not_there(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path / "weights")
    assert folder.latest() is None

    def fail(target: Path) -> None:
        write(target)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        folder.publish(1, fail)
    assert folder.latest() is None
    assert list((tmp_path / "weights").iterdir()) == []
    published = folder.publish(1, write)
    assert folder.latest() == published
    assert (published.folder / READY).exists()


def test_a_folder_without_its_marker_is_not_seen_and_is_replaced(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    (tmp_path / "step_000004").mkdir()
    assert folder.versions() == []
    assert folder.publish(4, write).version == 4
    # What is whole stays: readers may have it open.
    folder.publish(4, lambda target: write(target, "others"))
    assert (tmp_path / "step_000004" / "model.safetensors").read_text() == "weights"


def test_a_reader_of_another_process_acknowledges(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    name = "http://reader:8000/v1"
    reader = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path)])

    async def publish_all() -> list[int]:
        removed = []
        for version in (1, 2, 3):
            folder.publish(version, lambda target, version=version: write(target, f"weights {version}"))
            await folder.acknowledged(version, [name], timeout_s=PATIENT_S)
            removed += folder.clean([name])
        return removed

    try:
        assert asyncio.run(publish_all()) == [1]
        assert reader.wait(PATIENT_S) == 0
    finally:
        reader.kill()
    assert folder.readers(3) == {name}


def test_a_silent_reader_is_named(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    folder.publish(7, write)
    folder.acknowledge(7, "a")
    with pytest.raises(NoSampler, match=r"^b, c did not load version 7 within"):
        asyncio.run(folder.acknowledged(7, ["c", "a", "b"], timeout_s=0))


def test_nothing_is_removed_that_a_reader_may_be_loading(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path)
    for version in range(6):
        folder.publish(version, write)
    folder.acknowledge(5, "quick")
    folder.acknowledge(2, "slow")
    # The slow one has 2, and may be loading anything newer, or 2 again after a restart.
    assert folder.clean(["slow", "not here yet"]) == []
    assert folder.clean(["slow"]) == [0, 1]
    folder.acknowledge(5, "slow")
    assert folder.clean() == [2, 3]
    assert [published.version for published in folder.versions()] == [4, 5]


def test_two_stay_whoever_asks(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="At least 2"):
        WeightFolder(tmp_path, keep=1)
