"""What people see of a run: one line a step, and a view on a terminal that needs no other numbers."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from drkernel_q.cli import drkq
from drkernel_q.settings import load_settings
from policy.cli.live import Live, line
from policy.cli.training import to_toml
from policy.config import load_config, presets
from policy.training.recipe import TrainConfig
from tests.training import a_config

METRICS = {"reward/mean": 1.25, "fast_1/turn_2": 0.5, "rate/hack": 0.0, "time/step_s": 12.0}


def test_a_line_shows_what_there_is() -> None:
    assert line(3, METRICS, a_config()) == "step 3/4  reward 1.25  fast@1 0.5  hack 0  seconds 12"


def test_elsewhere_than_on_a_terminal_a_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Live(a_config()) as live:
        live.tell("loading the model")
        live.at("step 1: generate, 3 written, 0 judged")
        live.report(1, METRICS)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["loading the model", line(1, METRICS, a_config())]


def test_the_view_has_the_steps_and_where_the_run_is() -> None:
    live = Live(a_config())
    live.at("step 3: judge, 3 written, 1 judged")
    for step in range(1, 3):
        live.report(step, METRICS)
    console = Console(file=io.StringIO(), width=140)
    console.print(live._render())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "fast@1.2" in shown
    assert "step 2 of 4" in shown
    assert "s left" in shown
    assert "step 3: judge, 3 written, 1 judged" in shown


@pytest.mark.parametrize("preset", presets("train"))
def test_a_preset_written_as_toml_is_the_same_configuration(
    preset: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = load_config(TrainConfig, "train", preset)
    file = tmp_path_factory.mktemp("toml") / "config.toml"
    file.write_text(to_toml(config))
    assert load_config(TrainConfig, "train", file=file) == config


def test_the_article_s_numbers_are_in_its_presets() -> None:
    assert {"tiny", "small", "paper-8b", "paper-14b"} <= set(presets("train"))
    for name in ("paper-8b", "paper-14b"):
        config = load_config(TrainConfig, "train", name)
        assert (config.problems.per_step, config.rollout.group_size, config.rollout.turns) == (16, 16, 3)
        assert (config.steps, config.optimizer.learning_rate, config.rollout.sampling.max_new_tokens) == (
            300,
            1e-6,
            8192,
        )
        assert (config.mismatch.beta, config.mismatch.eta, config.mismatch.scope) == (1.001, 1e-4, "trajectory")
        assert (config.laziness.kind, config.laziness.tau, config.laziness.sigma) == ("exp", 0.3, 0.1)
        assert (config.reward.kind, config.reward.speedup_cap, config.advantage.kind) == (
            "multiplicative",
            3.0,
            "trloo",
        )


def test_a_run_is_named_found_again_or_refused(tmp_path: Path) -> None:
    def shown(*arguments: str) -> Result:
        return CliRunner().invoke(drkq, ["train", "--dry-run", "--json", "--steps", "1", *arguments])

    assert json.loads(shown().stdout)["run"] == "train"
    folder = load_settings().data_dir / "runs" / "train"
    folder.mkdir(parents=True)
    assert json.loads(shown().stdout)["run"] == "train-2"
    assert (shown("--resume").exit_code, shown("--resume", "--run", "x").exit_code) == (78, 78)
    (folder / "config.toml").write_text(to_toml(a_config(seed=7)))
    resumed = json.loads(shown("--resume", "--seed", "8").stdout)
    assert (resumed["run"], resumed["config"]["seed"], resumed["config"]["steps"]) == ("train", 8, 1)
    taken = shown("--run", "train")
    assert taken.exit_code == 78
    assert "go on with --resume" in taken.stderr
    assert json.loads(shown("--out", str(tmp_path / "mine")).stdout)["run"] == "mine"
    wrong = shown("--set", "mismatch.bta=2")
    assert wrong.exit_code == 78
    assert "did you mean `mismatch.beta`?" in wrong.stderr
