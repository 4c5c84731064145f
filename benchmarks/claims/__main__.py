"""The article's claims at small scale: a policy from nothing, trained on facts that were measured on a GPU before.

Stages, each a command; all but `evaluate` run anywhere, and each goes on where it was stopped:

\b
    claims restore --dir DIR                                        the policy that is kept in the repository, or:
    claims prepare --dir DIR                                        problems, conversations, a model, fine-tuning
    claims sample --dir DIR                                         DIR/kernels.jsonl: what that policy writes
    claims guess --dir DIR                                          DIR/guessed.parquet: facts made up of it
    claims train --dir DIR --facts DIR/guessed.parquet --name try   a rehearsal, to see where training leads
    claims sample --dir DIR --model A --model B ...                 the list again, by what those models write too
    claims coverage --dir DIR --model A ...                         the share of what they write that is in the list
    claims evaluate --dir DIR --device cuda:0 --seconds 900         DIR/facts.parquet: what the queue finds of it, in
                                                                    place of the facts of an H200 that are kept
    claims qualities --dir DIR                                      what was found of kernels of each quality
    claims train --dir DIR --jobs 12                                arms x seeds, figures, DIR/claims.json
    claims keep model|list --dir DIR                                keeps them in the repository (list: after `sample`)

Run it by `python -m benchmarks.claims ...`. In `train` nothing is judged: a kernel that was never measured
has no facts, and is learned from by nobody (docs/decisions/0012); the share of these is in every figure's table.
"""  # noqa: D301 - click reads the mark

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import click
import pyarrow.parquet as pq

from benchmarks.claims import kept
from benchmarks.claims.found import claims
from benchmarks.claims.kept import KERNELS, MEASURED
from benchmarks.claims.measured import measure, request
from benchmarks.claims.subset import CHOICE, Choice, conversations, read_subset, subset
from benchmarks.claims.written import TEMPERATURE, Guess, Order, Written, by_quality, covered, listed, written
from drkernel_q.cli.output import emit_table, say
from drkernel_q.curriculum.expected import NOWHERE
from drkernel_q.evaluation import Evaluation, Integrity, Outcome, Protocol, Reply
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.store.export import write_file, write_lines
from drkernel_q.store.fact_file import import_facts
from drkernel_q.store.facts import load
from policy.config import load_config
from policy.grading.ablation import AblationConfig, plan, series

#: Conversations of a step of fine-tuning, as in the preset `tiny`.
BATCH = 32
FACTS = "facts.parquet"

Command = TypeVar("Command", bound=Callable[..., Any])

_folder = click.option(
    "--dir", "folder", type=click.Path(path_type=Path), required=True, help="Folder of everything that is made."
)


@click.group(help=__doc__)
def main() -> None:
    """Choose a stage."""


@main.command()
@_folder
@click.option("--seed", default=0, show_default=True, help="Seed of problems, weights and conversations.")
@click.option("--levels", default="1", show_default=True, help="Levels of problems, as digits.")
@click.option("--longest", default=3, show_default=True, help="Most operators of a chain.")
@click.option(
    "--operators", default="any", show_default=True, help="What chains are made of, by comma; `plain`: no constants."
)
@click.option("--drawn", is_flag=True, help="Draw the details of solutions: many more kernels can be written then.")
@click.option("--train", default=20, show_default=True, help="Problems to be measured and trained on.")
@click.option("--heldout", default=16, show_default=True, help="Problems to be measured and validated on.")
@click.option("--others", default=1400, show_default=True, help="Further problems in the conversations.")
@click.option("--copies", default=6, show_default=True, help="Conversations for each problem that is trained on.")
@click.option("--size", default="0.9m", show_default=True, help="Size of the model.")
@click.option("--epochs", default=5.0, show_default=True, help="Epochs of fine-tuning.")
@click.option("--sft-device", default="auto", show_default=True, help="`auto` or `cpu`; with --plain as torch has it.")
@click.option("--plain", is_flag=True, help="Fine-tune in a loop of its own, where trl is not there.")
def prepare(folder: Path, size: str, epochs: float, **options: Any) -> None:
    """Write problems and conversations; make and fine-tune a model. What is there already is not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    choice = Choice(**{name: options[name] for name in Choice._fields})
    talk = folder / "conversations.jsonl"
    if not choice.is_of(folder):
        if (folder / CHOICE).exists():
            raise click.ClickException(f"{folder} was prepared with other options; name another folder.")
        chosen = subset(choice)
        chosen.write(folder)
        write_lines(conversations(chosen, choice), talk)
        choice.write(folder)  # the last of them: what was not finished is begun again
    seed = str(choice.seed)
    if not (folder / "new").exists():
        shape = ["--size", size, "--pieces", "lines", "--context", "2048", "--seed", seed]
        _drkq("model", "new", str(folder / "new"), *shape, "--texts", str(talk))
    if options["plain"]:
        _teach(folder, talk, epochs, choice.seed, options["sft_device"])
        return
    flags = {"epochs": epochs, "seed": seed, "device": options["sft_device"], "data.loss_on": "all"}
    sets = [part for name, value in flags.items() for part in ("--set", f"{name}={value}")]
    where = ["--model", str(folder / "new"), "--data", str(talk), "--out", str(folder / "sft")]
    resume = ["--resume"] if (folder / "sft").exists() else []
    _drkq("sft", "--preset", "tiny", *where, *sets, *resume)


@main.command()
@_folder
def restore(folder: Path) -> None:
    """Make DIR with the policy, the problems and the list of kernels that are kept in the repository."""
    kept.restore(folder)
    click.echo(json.dumps({"stage": "restore", "from": str(kept.KEPT)}))


@main.command()
@_folder
@click.argument("what", type=click.Choice(["model", "list"]))
def keep(folder: Path, what: str) -> None:
    """Keep the policy of DIR in the repository, or the list of kernels that it writes."""
    (kept.keep_model if what == "model" else kept.keep_list)(folder)
    click.echo(json.dumps({"stage": "keep", "what": what, "in": str(kept.KEPT)}))


def _teach(folder: Path, talk: Path, epochs: float, seed: int, device: str) -> None:
    from benchmarks.claims.taught import teach  # torch takes seconds to import

    target = folder / "sft" / "model"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        device = "cuda" if device == "auto" else device
        teach(folder / "new", talk, target, epochs=epochs, batch=BATCH, seed=seed, device=device)


def _sampled(samples: int, seed: int) -> Callable[[Command], Command]:
    """Give a command the options of what is sampled."""
    options = (
        click.option(
            "--model", "models", multiple=True, type=click.Path(path_type=Path), help="Default: the fine-tuned."
        ),
        click.option("--samples", default=samples, show_default=True, help="Trajectories a problem, of each model."),
        click.option("--turns", default=3, show_default=True, help="Turns of each."),
        click.option("--temperature", default=TEMPERATURE, show_default=True, help="As in training."),
        click.option("--seed", default=seed, show_default=True, help="Seed of what is drawn."),
        click.option("--device", default="auto", show_default=True, help="Where the model runs: auto, cpu, cuda."),
    )

    def give(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return give


def _write(folder: Path, models: Sequence[Path], **options: Any) -> dict[str, Written]:
    chosen = read_subset(folder)
    models = models or (folder / "sft" / "model",)
    return {str(model): asyncio.run(written(chosen, Order(model=model, **options))) for model in models}


@main.command()
@_folder
@_sampled(samples=64, seed=0)
def sample(folder: Path, models: tuple[Path, ...], **options: Any) -> None:
    """List the kernels that policies write, those first that are written most, and then all generated solutions."""
    began = time.monotonic()
    found = list(_write(folder, models, **options).values())
    rows = list(listed(read_subset(folder), found))
    write_lines(rows, folder / KERNELS)
    line = {"stage": "sample", "kernels": len(rows), "written": sum(each.total() for each in found)}
    click.echo(json.dumps(line | {"wall_s": round(time.monotonic() - began, 1)}))


@main.command()
@_folder
@_sampled(samples=16, seed=1000)
@click.option("--limits", default="400,600,800", show_default=True, help="Lengths of the list, by comma.")
def coverage(folder: Path, models: tuple[Path, ...], limits: str, **options: Any) -> None:
    """Say which share of what policies write, drawn anew, is in the list, if only its beginning is measured."""
    chosen = read_subset(folder)
    rows = _kernels(folder)
    table, qualities = [], []
    for model, fresh in _write(folder, models, **options).items():
        for limit in (*(int(each) for each in limits.split(",")), len(rows)):
            shares = covered(chosen, rows[:limit], fresh)
            table.append((model, limit, *(f"{shares.get(part, 0):.3f}" for part in ("train", "heldout"))))
        for part, each in by_quality(chosen, fresh).items():
            qualities += [(model, part, name, f"{share:.3f}") for name, share in each.items()]
    emit_table(("model", "part", "quality", "share"), qualities)
    emit_table(("model", "kernels measured", "train", "held out"), table)


@main.command()
@_folder
@click.option("--limit", type=int, help="Only so many kernels, from the first.")
def guess(folder: Path, limit: int | None) -> None:
    """Write DIR/guessed.parquet: made-up facts of a device that is nowhere, to rehearse training with."""
    judge, target = Guess(read_subset(folder)), folder / "guessed.parquet"
    (folder / "guessed.sqlite").unlink(missing_ok=True)
    with Store.open(f"sqlite:///{folder / 'guessed.sqlite'}") as store:
        store.upgrade()
        for row in _kernels(folder)[:limit]:
            asked = request(row, Protocol(), NOWHERE)
            found = asyncio.run(judge.evaluate(asked.problem, asked.kernel))
            store.record(
                asked, Reply(id=asked.id, attempt=1, worker=NOWHERE, evaluation=found, finished_at=asked.submitted_at)
            )
        write_file(store, "facts", "parquet", target)
    click.echo(json.dumps({"stage": "guess", "facts": pq.read_metadata(target).num_rows}))


def _kernels(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / KERNELS).read_text(encoding="utf-8").splitlines()]


@main.command()
@_folder
@click.option("--device", default="cuda:0", show_default=True, help="Device to measure on.")
@click.option("--in-flight", default=16, show_default=True, help="Evaluations under way at once.")
@click.option("--limit", type=int, help="Only so many kernels, from the first.")
@click.option("--seconds", type=float, default=1e9, help="End after this, whatever is under way.")
@click.option("--budget", type=float, help="Seconds that timing aims to stay within, if not the protocol's own.")
@click.option(
    "--known", multiple=True, type=click.Path(path_type=Path), help="Files of facts; what is in them is left out."
)
def evaluate(
    folder: Path,
    device: str,
    in_flight: int,
    limit: int | None,
    seconds: float,
    budget: float | None,
    known: tuple[Path, ...],
) -> None:
    """Have the kernels judged through the queue, in their order, and keep each fact once it is there.

    A run that was stopped, by kill -9 too, goes on with the same command, and loses what was under way.
    """
    settings = load_settings(device=device, data_dir=folder / "measured")
    protocol = Protocol() if budget is None else Protocol(timing_budget_s=budget)
    line = asyncio.run(measure(_kernels(folder)[:limit], folder / FACTS, settings, in_flight, seconds, protocol, known))
    click.echo(json.dumps(line))


@main.command()
@_folder
def qualities(folder: Path) -> None:
    """Show what was found of the kernels of the list, by what they were meant to be."""
    known = {(row["problem_source"], row["kernel_source"]): row["quality"] for row in _kernels(folder)}
    found: dict[str, list[Evaluation]] = {}
    for fact in pq.read_table(_measured(folder)).to_pylist():
        quality = known.get((fact["problem_source"], fact["kernel_source"])) or "written"
        found.setdefault(quality, []).append(load(json.loads(fact["document"])))
    columns = ("quality", "kernels", "clean", "rejected", "not correct", "of 1.2x", "median speedup", "median s")
    emit_table(columns, [_row(quality, found[quality]) for quality in sorted(found)])


def _row(quality: str, found: Sequence[Evaluation]) -> tuple[str | int, ...]:
    clean = [each for each in found if each.honest_and_correct]
    speedups = [each.speedup for each in clean if each.speedup is not None]
    correct = sum(each.outcome is Outcome.CORRECT for each in found)
    rejected = sum(each.integrity is Integrity.REJECTED for each in found)
    middle = f"{median(speedups):.2f}" if speedups else "-"
    seconds = f"{median(each.durations_s['total'] for each in found):.1f}"
    fast = sum(speedup >= 1.2 for speedup in speedups)
    return quality, len(found), len(clean), rejected, len(found) - correct, fast, middle, seconds


def _measured(folder: Path) -> Path:
    """Return what was measured in a folder; if nothing was, what an H200 said."""
    return folder / FACTS if (folder / FACTS).exists() else MEASURED


@main.command()
@_folder
@click.option("--facts", "files", multiple=True, type=click.Path(path_type=Path), help="Default: see above.")
@click.option("--jobs", default=12, show_default=True, help="Runs at once.")
@click.option("--arms", help="Only these, by comma.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds, by comma.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting of the ablation, as base.steps=20.")
@click.option("--name", default="claims", show_default=True, help="Name of the ablation; another for other settings.")
@click.option("--learn-on", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="For all runs.")
def train(folder: Path, files: tuple[Path, ...], jobs: int, learn_on: str, name: str, **options: Any) -> None:
    """Train every arm over every seed, from recorded facts alone, and say what of the claims is there.

    The facts are DIR/facts.parquet, or, if nothing was measured in DIR, those of an H200 that are kept.
    """
    began = time.monotonic()
    files = files or (_measured(folder),)
    data = (folder / "runs-of" / name).absolute()
    data.mkdir(parents=True, exist_ok=True)
    with Store.open(f"sqlite:///{data / 'drkq.sqlite'}") as store:
        store.upgrade()
        kinds = {kind for file in files for kind in import_facts(store, file).device_kinds}
    if len(kinds) != 1:
        raise click.ClickException(f"The facts are of {len(kinds)} kinds of device; they must be of one.")
    validation: dict[str, Any] = {"base.validation.every_steps": 15, "base.validation.samples": 4}
    validation |= {"base.validation.problems": [str(folder / "heldout")]}
    protocol = _protocol(files)
    sets = [f"{key}={json.dumps(value)}" for key, value in {**validation, **protocol}.items()] + list(options["sets"])
    chosen = ["--arms", options["arms"]] if options["arms"] else []
    where = ["--model", str(folder / "sft" / "model"), "--problems", str(folder / "train"), "--run", name]
    flags = [part for each in sets for part in ("--set", each)]
    environment = {"DRKQ_RECORDED": kinds.pop(), "DRKQ_DATA_DIR": str(data)}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if learn_on == "cpu" else {}
    call = ["ablate", "--preset", "recorded", *where, "--seeds", options["seeds"], "--jobs", str(jobs)]
    _drkq(*call, *chosen, *flags, **environment)
    flagged = {"seeds": [int(seed) for seed in options["seeds"].split(",")]}
    config = load_config(AblationConfig, "ablate", "recorded", None, sets, flagged)
    found = claims(series(plan(config, name), data / "runs"))
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    emit_table(("claim", "number", "mean", "95 % interval"), list(_shown(found)))
    click.echo(json.dumps({"stage": "train", "claims": len(found), "wall_s": round(time.monotonic() - began, 1)}))


def _protocol(files: Sequence[Path]) -> dict[str, Any]:
    """How most of the facts were measured, which is how the runs must ask; the others are not found then."""
    texts = (text for file in files for text in pq.read_table(file, columns=["protocol"])["protocol"].to_pylist())
    counts = Counter(Protocol.model_validate_json(text) for text in texts)
    (chosen, count), *_ = counts.most_common(1) or [(Protocol(), 0)]
    say(f"{count} facts; {counts.total() - count} were measured in another way and are left out")
    return {f"base.protocol.{key}": value for key, value in chosen.model_dump(mode="json").items()}


def _shown(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for claim, numbers in found.items():
        for name, each in numbers.items():
            interval = "-" if each["low"] is None else f"{each['low']:.3g} to {each['high']:.3g}"
            yield claim, name, f"{each['mean']:.3g}", interval


def _drkq(*arguments: str, **environment: str) -> None:
    """Run a command as people do."""
    say(f"drkq {' '.join(arguments[:2])} ...")
    done = subprocess.run([sys.executable, "-m", "drkernel_q", *arguments], check=False, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
