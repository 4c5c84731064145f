"""The files that keep devices out of service."""

from pathlib import Path

import pytest

from drkernel_q import quarantine
from drkernel_q.quarantine import Quarantine

GPU = Quarantine(
    identity="GPU-1",
    device="cuda:0",
    device_name="NVIDIA H200",
    host="box",
    reason="The canary found that 7 of 8192 products are wrong.",
    since="2026-01-01T00:00:00+00:00",
    evidence=("Look 1: ...",),
)


def test_a_device_is_out_of_service_until_it_is_cleared(tmp_path: Path) -> None:
    assert quarantine.find(tmp_path, "GPU-1") is None
    assert quarantine.find_all(tmp_path) == []
    quarantine.put(tmp_path / "new", GPU)
    quarantine.put(tmp_path / "new", GPU.model_copy(update={"identity": "GPU-0", "device": "cuda:1"}))
    assert quarantine.find(tmp_path / "new", "GPU-1") == GPU
    assert [each.device for each in quarantine.find_all(tmp_path / "new")] == ["cuda:1", "cuda:0"]
    assert "drkq worker --device cuda:0 --clear-quarantine" in GPU.remedy
    assert quarantine.clear(tmp_path / "new", "GPU-1") == GPU
    assert quarantine.clear(tmp_path / "new", "GPU-1") is None
    assert quarantine.find(tmp_path / "new", "GPU-1") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"identity": "GPU-1"}', "\xff"])
def test_a_file_that_cannot_be_read_keeps_the_device_out_of_service(tmp_path: Path, text: str) -> None:
    path = quarantine.put(tmp_path, GPU)
    path.write_text(text, encoding="latin-1")
    found = quarantine.find(tmp_path, "GPU-1")
    assert found is not None
    assert found.identity == "GPU-1"
    assert "cannot be read" in found.reason
    assert quarantine.clear(tmp_path, "GPU-1") == found
    assert not path.exists()
