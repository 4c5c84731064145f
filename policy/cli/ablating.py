"""What `drkq ablate` does: a `drkq train` for every run, then files that compare them, and a table for people."""

import csv
import importlib.util
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from drkernel_q import record
from drkernel_q.cli.output import emit_json, emit_table, emit_text, say
from drkernel_q.errors import BadSettings, Cancelled
from drkernel_q.settings import load_settings
from policy.cli.crew import INTERRUPTED, Ended, Job, train_all
from policy.cli.training import to_toml
from policy.config import load_config
from policy.grading.ablation import AblationConfig, ArmRun, chosen, plan, series
from policy.grading.curve import COLUMNS, PANELS, OverSeeds, Panel, Point, curve, drawing, summary, table
from policy.training.recipe import TrainConfig

DEFAULT_PRESET = "article"
#: What the table for people shows of each arm, by metric.
SHOWN = {
    "Fast@1": "fast_1/last",
    "Fast@1.2": "fast_1.2/last",
    "reward": "reward/mean",
    "PR": "pr/mean",
    "hacks": "rate/hack",
    "entropy": "policy/entropy",
    "gradient": "policy/grad_norm",
}


class Order(NamedTuple):
    """What the command was asked to do."""

    config: AblationConfig
    runs: list[ArmRun]
    folder: Path
    """Folder of the ablation; those of its runs are beside it."""
    as_json: bool
    jobs: int
    """Runs at once."""


def prepare(options: dict[str, Any]) -> Order:
    """Resolve the ablation and all its runs, before any of them begins.

    Raises:
        BadSettings: a setting of the ablation, or of an arm, is wrong.
    """
    preset = options["preset"] or (None if options["file"] else DEFAULT_PRESET)
    problems = options["problems"]
    flags = {
        "seeds": _seeds(options["seeds"]) if options["seeds"] else None,
        "base.steps": options["steps"],
        "base.model.name": options["model"],
        "base.problems.names": problems.split(",") if problems else None,
    }
    config = load_config(AblationConfig, "ablate", preset, options["file"], options["overrides"], flags)
    if options["arms"]:
        config = chosen(config, tuple(options["arms"].split(",")))
    folder = load_settings().data_dir / "runs" / options["name"]
    return Order(config, plan(config, options["name"]), folder, options["as_json"], options["jobs"])


def preview(order: Order) -> None:
    """List the runs, and the settings that differ between arms."""
    flat = {run.name: _lines(run.config) for run in order.runs}
    common = set.intersection(*(set(lines) for lines in flat.values()))
    rows = [(run.name, run.config.steps, _state(order, run), _differing(flat[run.name], common)) for run in order.runs]
    if order.as_json:
        emit_json([dict(zip(("run", "steps", "state", "settings"), row, strict=True)) for row in rows])
        return
    emit_table(("run", "steps", "state", "settings"), [(*row[:3], " ".join(row[3])) for row in rows])


def train(order: Order) -> None:
    """Do what is left of every run, as many at once as were asked for.

    Raises:
        BadSettings: a run of that name is there with other settings.
        Cancelled: a run was stopped, and saved.
    """
    states = {run.name: _state(order, run) for run in order.runs}
    left = [run for run in order.runs if states[run.name] != "done"]
    jobs = [Job(run.name, _plan(order, run), states[run.name] != "new") for run in left]
    done = len(order.runs) - len(jobs)
    failed: list[Ended] = []
    for ended in train_all(jobs, order.jobs, load_settings()):
        done += not ended.code
        failed += [ended] if ended.code else []
        say(f"{done}/{len(order.runs)} runs are done: {ended.job.name} ended with exit code {ended.code}")
    if any(ended.code == INTERRUPTED for ended in failed):
        raise Cancelled(f"Stopped in {failed[0].job.name}, and saved; the same command goes on.")
    if failed:
        say(f"What {failed[0].job.name} said is in {failed[0].job.plan.with_suffix('.log')}; the other runs are kept.")
        raise SystemExit(failed[0].code)


def compare(order: Order) -> None:
    """Write curves, figures and numbers of what is there, and show a table."""
    found = series(order.runs, order.folder.parent)
    if not found:
        raise BadSettings(f"No run of `{order.folder.name}` has a step to compare yet.")
    points = {panel: curve(found, panel, order.config.window) for panel in PANELS}
    numbers = summary(found)
    order.folder.mkdir(parents=True, exist_ok=True)
    (order.folder / "curves.csv").write_text(_csv(COLUMNS, table(points)), encoding="utf-8")
    document = _document(numbers)
    (order.folder / "summary.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _draw(order.folder, points)
    if order.as_json:
        emit_json({"folder": str(order.folder), "arms": document})
        return
    rows = [(arm, *(_cell(each["end"].get(metric)) for metric in SHOWN.values())) for arm, each in numbers.items()]
    emit_table(("arm", *SHOWN), rows)
    emit_text("Means over the last fifth of the steps; +- is half a 95 % interval over seeds.")
    emit_text(f"{order.folder}: curves.csv, summary.json, figures")


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadSettings(f"`{text}` is no list of seeds; write them like 0,1,2.") from None


def _state(order: Order, run: ArmRun) -> str:
    """How far a run is: `new`, `step N`, or `done`."""
    folder = order.folder.parent / run.name
    settings = folder / "config.toml"
    if not settings.exists():
        return "new"
    before = load_config(TrainConfig, "train", file=settings)
    steps = max((line["step"] for line in record.read(folder / record.FILE)), default=0)
    if steps < run.config.steps or not (folder / "model").exists():
        return f"step {steps}"
    if before != run.config:
        changed = _differing(_lines(before), set(_lines(run.config)))
        raise BadSettings(
            f"The run `{run.name}` is done with other settings ({', '.join(changed)}); give another name by --run."
        )
    return "done"


def _plan(order: Order, run: ArmRun) -> Path:
    """Write the configuration of a run."""
    plans = order.folder / "arms"
    plans.mkdir(parents=True, exist_ok=True)
    file = plans / f"{run.name}.toml"
    file.write_text(to_toml(run.config), encoding="utf-8")
    return file


def _draw(folder: Path, points: dict[Panel, list[Point]]) -> None:
    for figure in dict.fromkeys(panel.figure for panel in PANELS):
        panels = {panel: each for panel, each in points.items() if panel.figure == figure}
        spec = drawing(panels)
        if not spec["concat"]:
            continue
        (folder / f"figure-{figure}.vl.json").write_text(json.dumps(spec) + "\n", encoding="utf-8")
        if importlib.util.find_spec("vl_convert") is not None:
            title = "; ".join(panel.title for panel, each in panels.items() if each)  # for those who cannot see it
            image = importlib.import_module("vl_convert").vegalite_to_svg(spec)
            image = image.replace(">", f"><title>{escape(title)}</title>", 1)
            (folder / f"figure-{figure}.svg").write_text(image, encoding="utf-8")


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _document(numbers: dict[str, dict[str, dict[str, OverSeeds]]]) -> dict[str, Any]:
    return {
        arm: {kind: {name: found._asdict() for name, found in each.items()} for kind, each in kinds.items()}
        for arm, kinds in numbers.items()
    }


def _cell(found: OverSeeds | None) -> str:
    if found is None:
        return "-"
    return f"{found.mean:.3g}" if found.high is None else f"{found.mean:.3g} +- {found.high - found.mean:.2g}"


def _lines(config: TrainConfig) -> list[str]:
    return to_toml(config).splitlines()


def _differing(lines: Sequence[str], others: set[str]) -> list[str]:
    return [line.replace(" = ", "=") for line in lines if line not in others and not line.startswith("seed")]
