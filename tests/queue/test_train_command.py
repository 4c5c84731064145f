"""`drkq train` as people run it: a small model, real workers, real problems, and nothing set up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from drkernel_q.cli import drkq as group
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from policy.config import load_config
from policy.training import checkpoint
from policy.training.recipe import TrainConfig
from tests.need import ROOT

CONFIG = f"""
steps = 1
[problems]
names = ["softmax"]
per_step = 1
[rollout]
group_size = 2
turns = 1
templates = "{ROOT / "tests" / "templates"}"
[rollout.sampling]
max_new_tokens = 2000
[sampler]
name = "scripted:answers.json"
[mismatch]
enabled = false
[protocol]
trials = 1
weight_seeds = 1
timing_budget_s = 0.2
[model]
size = "tiny"
[tracking]
trackers = ["tensorboard"]
"""


def drkq(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drkernel_q", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=170, check=False)


@pytest.mark.slow
def test_a_dry_run_resolves_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sets = ["--set", "lora.rank=64", "--set", "sharding=full"]
    shown = CliRunner().invoke(group, ["train", "--preset", "paper-14b", *sets, "--dry-run", "--json"])
    assert shown.exit_code == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["sizes"]["rows"] == 16 * 16 * 3
    assert found["config"]["optimizer"]["learning_rate"] == 1e-6
    assert found["memory_bytes"]["total"] < 141e9
    assert found["memory_bytes_by_ranks"]["8"]["weights"] == found["memory_bytes"]["weights"] // 8
    assert not (load_settings().data_dir / "runs").exists()


@pytest.mark.slow
@pytest.mark.redis
def test_a_run_from_nothing_to_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    source = (ROOT / "examples" / "softmax.py").read_text()
    (tmp_path / "answers.json").write_text(json.dumps([f"```python\n{source}\n```"]))
    done = drkq("train", "--config", "config.toml", "--device", "cpu", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(text) for text in done.stdout.splitlines()]
    assert line["rate/honest"] == 1.0
    assert line["reward/mean"] >= 1.0
    assert line["time/judge_s"] > 0
    settings = load_settings()
    folder = settings.data_dir / "runs" / "train"
    assert (folder / "model" / "model.safetensors").exists()
    assert list(folder.rglob("events.out.tfevents*"))
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    assert found.manifest.step == 1
    with Store.open(settings.store) as store:
        assert [lesson.turn_return for lesson in store.lessons("train")] == [line["reward/mean"]] * 2
        (first, _) = store.trajectories("train")
    assert first.turns[0].evaluation is not None
    kept = load_config(TrainConfig, "train", file=folder / "config.toml")
    assert kept.model_dump(mode="json") == found.manifest.config
