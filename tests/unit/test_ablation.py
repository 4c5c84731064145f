"""What an ablation plans, and what it makes of runs that are there."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from drkernel_q.errors import BadSettings
from drkernel_q.kernel import extract_kernel
from drkernel_q.problem import find_problem
from drkernel_q.settings import Settings, load_settings
from drkernel_q.store import Store
from policy.cli.ablate import command
from policy.cli.training import to_toml
from policy.config import load_config
from policy.grading.ablation import AblationConfig, chosen, plan, series
from tests.values import H200, a_reply, a_request, an_evaluation

FILE = """
preset = "tiny"
seeds = [0, 1]
[base]
steps = 4
laziness.enabled = false
[arms.trloo]
[arms.grpo]
advantage.kind = "grpo"
laziness.tau = 0.5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "arms.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def runs(own_folders: Path) -> Path:
    return own_folders / "data" / "drkq" / "runs"


def ablate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=True)


def planned(file: Path) -> AblationConfig:
    return load_config(AblationConfig, "ablate", file=file)


def a_run(runs: Path, file: Path, place: int, values: list[float], *, whole: bool = True) -> None:
    """Leave behind what `drkq train` leaves of one of the runs."""
    run = plan(planned(file), "t")[place]
    folder = runs / run.name
    (folder / "model").mkdir(parents=True) if whole else folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(run.config))
    rows = [{"step": step, "reward/mean": value} for step, value in enumerate(values, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_every_arm_is_planned_with_every_seed_and_only_its_own_settings(file: Path) -> None:
    found = plan(planned(file), "t")
    assert [run.name for run in found] == ["t-trloo-seed0", "t-grpo-seed0", "t-trloo-seed1", "t-grpo-seed1"]
    trloo, grpo = found[0].config, found[3].config
    assert (trloo.seed, grpo.seed, trloo.steps, grpo.steps) == (0, 1, 4, 4)
    assert (trloo.advantage.kind, grpo.advantage.kind) == ("trloo", "grpo")
    assert (trloo.laziness.tau, grpo.laziness.tau) == (0.3, 0.5)
    assert not grpo.laziness.enabled, "an arm changes one setting of a section and leaves the others"
    assert trloo.rollout.sampling.max_new_tokens == 64, "the preset's"


def test_the_arms_of_the_article_differ_as_their_names_say() -> None:
    config = load_config(AblationConfig, "ablate", "article")
    arms = {run.arm: run.config for run in plan(config, "t") if run.seed == 0}
    rejections = {arm: (each.mismatch.enabled, each.laziness.enabled) for arm, each in arms.items()}
    assert rejections.pop("mrs-pr-prs") == (True, True)
    assert {arm: on for arm, on in rejections.items() if any(on)} == {"mrs": (True, False), "mrs-pr": (True, False)}
    assert {arm for arm, each in arms.items() if each.reward.kind == "multiplicative"} == {"mrs-pr", "mrs-pr-prs"}
    assert {arm for arm, each in arms.items() if not each.reward.hack_check} == {"no-hack-check"}
    assert {arm for arm, each in arms.items() if each.rollout.turns == 1} == {"single-turn"}
    assert {arm for arm, each in arms.items() if each.advantage.gamma == 0} == {"no-credit"}
    assert arms["grpo"] == arms["trloo"].model_copy(update={"advantage": arms["grpo"].advantage})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("arms.grpo.advantage.kin=grpo", "Arm `grpo`: There is no setting `advantage.kin`; did you mean"),
        ("arms.grpo.loss.clip_low=2", "Arm `grpo`: The setting `loss.clip_low` is wrong"),
        ("arms.Big.steps=1", "cannot be the name of an arm"),
        ("seeds=[1, 1]", "a seed is there twice"),
        ("windo=1", "did you mean `window`?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(file: Path, setting: str, message: str) -> None:
    done = ablate(file, "--set", setting, "--dry-run")
    assert isinstance(done.exception, BadSettings)
    assert message in str(done.exception)


def test_arms_are_chosen_in_the_order_asked_for(file: Path) -> None:
    config = planned(file)
    assert list(chosen(config, ("grpo", "trloo")).arms) == ["grpo", "trloo"]
    with pytest.raises(BadSettings, match="no arm `rloo`; there are trloo, grpo"):
        chosen(config, ("rloo",))


def test_a_dry_run_lists_runs_and_how_they_differ(file: Path, runs: Path) -> None:
    a_run(runs, file, 0, [1.0, 1.0, 1.0, 1.0])
    a_run(runs, file, 1, [1.0, 1.0], whole=False)
    done = ablate(file, "--run", "t", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [(row["run"], row["state"]) for row in document] == [
        ("t-trloo-seed0", "done"),
        ("t-grpo-seed0", "step 2"),
        ("t-trloo-seed1", "new"),
        ("t-grpo-seed1", "new"),
    ]
    assert document[1]["settings"] == ['advantage.kind="grpo"', "laziness.tau=0.5"]


def test_a_run_that_is_done_with_other_settings_is_not_taken_for_this_one(file: Path, runs: Path) -> None:
    a_run(runs, file, 0, [1.0] * 4)
    done = ablate(file, "--run", "t", "--dry-run", "--set", "base.loss.clip_low=0.1")
    assert isinstance(done.exception, BadSettings)
    assert "t-trloo-seed0" in str(done.exception)
    assert "loss.clip_low=0.2" in str(done.exception)


@pytest.mark.slow
def test_figures_come_from_what_is_there(file: Path, runs: Path) -> None:
    a_run(runs, file, 0, [1.0, 2.0, 3.0, 4.0])
    a_run(runs, file, 1, [1.0, 2.0], whole=False)
    a_run(runs, file, 2, [2.0, 3.0, 4.0, 6.0])
    assert [(each.arm, each.seed, len(each.rows)) for each in series(plan(planned(file), "t"), runs)] == [
        ("trloo", 0, 4),
        ("grpo", 0, 2),
        ("trloo", 1, 4),
    ]
    done = ablate(file, "--run", "t", "--figures", "--set", "window=1", "--json")
    assert done.exit_code == 0, done.output
    arms = json.loads(done.stdout)["arms"]
    assert arms["trloo"]["end"]["reward/mean"]["mean"] == 5.0
    assert arms["grpo"]["difference"]["reward/mean"] == {"mean": -2.0, "low": None, "high": None, "seeds": 1}
    rows = list(csv.DictReader((runs / "t" / "curves.csv").read_text().splitlines()))
    assert [(row["arm"], row["x"], row["mean"]) for row in rows][:2] == [("trloo", "1", "1.5"), ("trloo", "2", "2.5")]
    figure = json.loads((runs / "t" / "figure-5.vl.json").read_text())
    assert len(figure["concat"]) == 1
    assert not (runs / "t" / "figure-7.vl.json").exists(), "nothing to draw"
    table = ablate(file, "--run", "t", "--figures")
    assert "5 +- " in table.output


def test_without_runs_there_is_nothing_to_compare(file: Path) -> None:
    done = ablate(file, "--run", "t", "--figures")
    assert isinstance(done.exception, BadSettings)
    assert "no step" in str(done.exception).lower() or "has a step" in str(done.exception)


@pytest.mark.slow
def test_runs_at_once_learn_from_recorded_facts_and_are_trained_once(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [f"```python\nclass ModelNew:\n    known = {known}\n```" for known in (True, False)]
    (tmp_path / "script.json").write_text(json.dumps(answers))
    kernel = extract_kernel(answers[0])
    assert kernel is not None
    request = a_request(kernel.source, problem=find_problem("softmax", Settings()))
    with Store.open(load_settings().store) as store:
        store.upgrade()
        store.record(request, a_reply(request, an_evaluation(speedup=2.0, profile_ratio=1.0)))
    file = tmp_path / "arms.toml"
    file.write_text(
        f"""
        preset = "tiny"
        seeds = [0, 1]
        [base]
        steps = 1
        judge_device = "recorded"
        shared_device = false
        sampler.name = "scripted:{tmp_path / "script.json"}"
        problems = {{names = ["softmax"], per_step = 1}}
        tracking.trackers = []
        [arms.only]
        """
    )
    monkeypatch.setenv("DRKQ_RECORDED", H200)
    done = ablate(file, "--run", "t", "--jobs", "2", "--json")
    assert done.exit_code == 0, done.output
    ends = json.loads(done.stdout)["arms"]["only"]["end"]
    assert (ends["reward/mean"]["seeds"], ends["reward/mean"]["mean"]) == (2, 3.0)
    for seed in (0, 1):
        with Store.open(f"sqlite:///{runs / 't' / 'arms' / f't-only-seed{seed}.sqlite'}") as store:
            written = list(store.trajectories(f"t-only-seed{seed}"))
            found = [[turn.evaluation and turn.evaluation.speedup for turn in each.turns] for each in written]
        assert found == [[2.0, None]] * 2
    with Store.open(load_settings().store) as store:
        assert not list(store.trajectories("t-only-seed0"))
    written_at = (runs / "t-only-seed0" / "metrics.jsonl").stat()
    again = ablate(file, "--run", "t", "--json")
    assert again.exit_code == 0, again.output
    assert (runs / "t-only-seed0" / "metrics.jsonl").stat() == written_at


@pytest.mark.slow
def test_after_a_run_that_failed_no_other_is_begun(tmp_path: Path, runs: Path) -> None:
    file = tmp_path / "arms.toml"
    file.write_text('preset = "tiny"\nbase.judge_device = "recorded"\narms.one = {}\narms.two = {}\n')
    done = ablate(file, "--run", "t", "--seeds", "0")
    assert done.exit_code == BadSettings.exit_code
    assert [path.name for path in runs.iterdir() if path.name.startswith("t-")] == ["t-one-seed0"]
