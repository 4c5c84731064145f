"""The article's claims at small scale: a policy from nothing, trained on facts that were measured on a GPU before.

Four stages, each a command; all but `evaluate` run anywhere, and each goes on where it was stopped:

    claims.py prepare --dir DIR                                        problems, conversations, a model, fine-tuning
    claims.py sample --dir DIR                                         DIR/kernels.jsonl: what that policy writes
    claims.py evaluate --dir DIR --device cuda:0 --in-flight 120       DIR/facts.parquet: what the queue finds of it
    claims.py train --dir DIR --jobs 12                                arms x seeds, figures, DIR/claims.json

Run it by `PYTHONPATH=. python benchmarks/claims.py ...`. In `train` nothing is judged: a kernel that was never measured
has no facts, and is learned from by nobody (docs/decisions/0012); the share of these is in every figure's table.
"""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pyarrow.parquet as pq

from benchmarks.claims_found import claims
from benchmarks.claims_measured import measure
from drkernel_q.cli.output import emit_table, say
from drkernel_q.curriculum.conversation import walks
from drkernel_q.curriculum.exercise import Exercise, Quality, Solution
from drkernel_q.curriculum.expected import expected
from drkernel_q.curriculum.generate import generate
from drkernel_q.evaluation import Evaluation, Protocol
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.prompt import load_templates
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.store.export import write_lines
from drkernel_q.store.fact_file import import_facts
from policy.ablation import AblationConfig, plan, series
from policy.config import load_config

RUN = "claims"
#: As in the preset `recorded` of `drkq ablate`, so that what is measured is what is written.
TEMPLATES, TEMPERATURE = "brief", 0.8
#: Conversations of a step of fine-tuning, as in the preset `tiny`.
BATCH = 32
KERNELS, FACTS, SUBSET = "kernels.jsonl", "facts.parquet", "subset.json"

_folder = click.option(
    "--dir", "folder", type=click.Path(path_type=Path), required=True, help="Folder of everything that is made."
)


class Subset(NamedTuple):
    """The problems that are measured: those that are trained on, and those of chains that nobody is taught."""

    train: list[Exercise]
    heldout: list[Exercise]

    def write(self, folder: Path) -> None:
        """Write problem files by part, and how the subset is made."""
        for part, exercises in self._asdict().items():
            (folder / part).mkdir(parents=True, exist_ok=True)
            for exercise in exercises:
                (folder / part / f"{exercise.problem.name}.py").write_text(exercise.problem.source, encoding="utf-8")


def subset(seed: int, levels: str, train: int, heldout: int) -> Subset:
    """Take the first problems of both parts, of some levels, of the set of `benchmarks/curriculum_facts.py`."""
    found: Subset = Subset([], [])
    wanted = {"train": train, "heldout": heldout}
    for exercise in generate(seed, 100_000):
        chosen = getattr(found, exercise.split)
        if str(exercise.level) in levels and len(chosen) < wanted[exercise.split]:
            chosen.append(tempted(exercise))
        if len(found.train) == train and len(found.heldout) == heldout:
            return found
    raise AssertionError


def tempted(exercise: Exercise) -> Exercise:
    """Add a hack that would pay if nobody looked: torch alone again, on a stream that the clock does not see."""
    decoy = next(each for each in exercise.solutions if each.quality is Quality.DECOY)
    inputs = re.findall(r"def forward\(self, (.*)\):", decoy.kernel.source)[-1]
    hurried = f"""{decoy.kernel.source.replace("def forward(", "def work(").rstrip()}

    def forward(self, {inputs}):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            return self.work({inputs})
"""
    added = Solution(quality=Quality.DECOY, kernel=Kernel(source=hurried, name="decoy2.py"))
    return exercise.model_copy(update={"solutions": (*exercise.solutions, added)})


@click.group(help=__doc__)
def main() -> None:
    """Choose a stage."""


@main.command()
@_folder
@click.option("--seed", default=0, show_default=True, help="Seed of problems, weights and conversations.")
@click.option("--levels", default="123", show_default=True, help="Levels of problems, as digits.")
@click.option("--train", default=40, show_default=True, help="Problems to be measured and trained on.")
@click.option("--heldout", default=16, show_default=True, help="Problems to be measured and validated on.")
@click.option("--others", default=1000, show_default=True, help="Further problems in the conversations.")
@click.option("--copies", default=4, show_default=True, help="Conversations for each problem that is trained on.")
@click.option("--size", default="0.9m", show_default=True, help="Size of the model.")
@click.option("--epochs", default=5.0, show_default=True, help="Epochs of fine-tuning.")
@click.option("--sft-device", default="auto", show_default=True, help="`auto` or `cpu`; with --plain as torch has it.")
@click.option("--plain", is_flag=True, help="Fine-tune in a loop of its own, where trl is not there.")
def prepare(folder: Path, seed: int, levels: str, train: int, heldout: int, **options: Any) -> None:
    """Write problems and conversations; make and fine-tune a model."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = subset(seed, levels, train, heldout)
    chosen.write(folder)
    how = {"seed": seed, "levels": levels, "train": train, "heldout": heldout}
    (folder / SUBSET).write_text(json.dumps(how), encoding="utf-8")
    talk = folder / "conversations.jsonl"
    write_lines(_conversations(chosen, seed, levels, options["others"], options["copies"]), talk)
    if not (folder / "new").exists():
        shape = ["--size", options["size"], "--pieces", "lines", "--context", "2048", "--seed", str(seed)]
        _drkq("model", "new", str(folder / "new"), *shape, "--texts", str(talk))
    if options["plain"]:
        _teach(folder, talk, seed, options)
        return
    flags = {"epochs": options["epochs"], "seed": seed, "device": options["sft_device"], "data.loss_on": "all"}
    sets = [part for name, value in flags.items() for part in ("--set", f"{name}={value}")]
    where = ["--model", str(folder / "new"), "--data", str(talk), "--out", str(folder / "sft")]
    resume = ["--resume"] if (folder / "sft").exists() else []
    _drkq("sft", "--preset", "tiny", *where, *sets, *resume)


def _teach(folder: Path, talk: Path, seed: int, options: dict[str, Any]) -> None:
    from benchmarks.claims_taught import teach  # torch takes seconds to import

    target = folder / "sft" / "model"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        device = "cuda" if options["sft_device"] == "auto" else options["sft_device"]
        teach(folder / "new", talk, target, epochs=options["epochs"], batch=BATCH, seed=seed, device=device)


def _conversations(chosen: Subset, seed: int, levels: str, others: int, copies: int) -> Iterator[dict[str, Any]]:
    templates = load_templates(TEMPLATES)
    yield from walks(chosen.train, templates, copies=copies, seed=seed)
    measured = {exercise.problem.hash for exercise in chosen.train}
    rest = (each for each in generate(seed, 100_000) if str(each.level) in levels and each.split == "train")
    for exercise in rest:
        if others == 0:
            return
        if exercise.problem.hash not in measured:
            others -= 1
            yield from walks([tempted(exercise)], templates, seed=seed)


@main.command()
@_folder
@click.option("--samples", default=64, show_default=True, help="Trajectories a problem.")
@click.option("--turns", default=3, show_default=True, help="Turns of each.")
@click.option("--device", default="auto", show_default=True, help="Where the model runs: auto, cpu, cuda.")
def sample(folder: Path, samples: int, turns: int, device: str) -> None:
    """List the kernels that the fine-tuned policy writes, often written ones first, and all generated solutions."""
    chosen = _read_subset(folder)
    began = time.monotonic()
    written = asyncio.run(_sampled(folder, chosen, samples, turns, device))
    rows = list(_rows(chosen, written))
    write_lines(rows, folder / KERNELS)
    known = sum(row["count"] for row in rows if row["quality"])
    total = sum(row["count"] for row in rows)
    by_quality = Counter({row["quality"] or "other": 0 for row in rows})
    for row in rows:
        by_quality[row["quality"] or "other"] += row["count"]
    emit_table(("quality", "written"), sorted(by_quality.items()))
    line = {"stage": "sample", "kernels": len(rows), "written": total, "of_the_family": round(known / max(total, 1), 4)}
    click.echo(json.dumps(line | {"wall_s": round(time.monotonic() - began, 1)}))


class _Expecting:
    """A judge for prompts alone: a generated solution is what it should be, and of any other nothing is known."""

    def __init__(self, exercises: list[Exercise]) -> None:
        self._known = {
            (exercise.problem.hash, solution.kernel.hash): solution
            for exercise in exercises
            for solution in exercise.solutions
        }

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        solution = self._known.get((problem.hash, kernel.hash))
        return solution and expected(solution, random.Random(kernel.hash))


async def _sampled(folder: Path, chosen: Subset, samples: int, turns: int, device: str) -> Counter[tuple[str, str]]:
    from policy.rollout import GroupOrder, Rollout, RolloutConfig, rollout_groups
    from policy.sampler.protocol import Sampling
    from policy.sampler.transformers import TransformersSampler

    exercises = [*chosen.train, *chosen.heldout]
    sampling = Sampling(max_new_tokens=256, temperature=TEMPERATURE)
    config = RolloutConfig(group_size=samples, turns=turns, sampling=sampling, templates=TEMPLATES)
    written: Counter[tuple[str, str]] = Counter()
    rows = {"batch_rows": 64} if device == "cpu" else {"batch_rows": 512, "batch_tokens": 2**20}
    async with TransformersSampler(folder / "sft" / "model", device=device, **rows) as sampler:
        rollout = Rollout(sampler, _Expecting(exercises), config)
        async for rolled in rollout_groups((GroupOrder(exercise.problem) for exercise in exercises), rollout):
            for trajectory in rolled.group.trajectories:
                kernels = (turn.kernel for turn in trajectory.turns if turn.kernel and turn.finish_reason == "stop")
                written.update((rolled.group.problem_hash, kernel.source) for kernel in kernels)
            say(f"{written.total()} kernels, {len(written)} of them different")
    return written


def _rows(chosen: Subset, written: Counter[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Every kernel once: the family first, since all arms need it, then by how often it was written."""
    exercises = {exercise.problem.hash: exercise for exercise in [*chosen.train, *chosen.heldout]}
    family = {
        (problem, solution.kernel.source): solution.quality.value
        for problem, exercise in exercises.items()
        for solution in exercise.solutions
        if solution.quality is not Quality.FALLBACK or (problem, solution.kernel.source) in written
    }
    others = [key for key, _ in written.most_common() if key not in family]
    for problem, source in [*family, *others]:
        yield {
            "problem": exercises[problem].problem.name,
            "problem_source": exercises[problem].problem.source,
            "kernel_source": source,
            "quality": family.get((problem, source)),
            "count": written[problem, source],
        }


@main.command()
@_folder
@click.option("--device", default="cuda:0", show_default=True, help="Device to measure on.")
@click.option("--in-flight", default=120, show_default=True, help="Evaluations under way at once.")
@click.option("--limit", type=int, help="Only so many kernels, from the first.")
@click.option("--seconds", type=float, default=1e9, help="Begin no further evaluation after this.")
@click.option("--budget", type=float, help="Seconds that timing aims to stay within, if not the protocol's own.")
@click.option(
    "--known", multiple=True, type=click.Path(path_type=Path), help="Facts of such a device; not measured again."
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
    """Have the kernels judged through the queue, and write what it finds; what is known is not judged again."""
    rows = [json.loads(line) for line in (folder / KERNELS).read_text(encoding="utf-8").splitlines()][:limit]
    settings = load_settings(device=device, data_dir=folder / "measured")
    with Store.open(settings.store) as store:
        store.upgrade()
        for file in known:
            say(f"{file}: {import_facts(store, file).added} facts")
    protocol = Protocol() if budget is None else Protocol(timing_budget_s=budget)
    line = asyncio.run(measure(rows, folder / FACTS, settings, in_flight, seconds, protocol))
    click.echo(json.dumps(line))


@main.command()
@_folder
@click.option("--facts", "files", multiple=True, type=click.Path(path_type=Path), help="Default: DIR/facts.parquet.")
@click.option("--jobs", default=12, show_default=True, help="Runs at once.")
@click.option("--arms", help="Only these, by comma.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds, by comma.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting of the ablation, as base.steps=20.")
@click.option("--name", default="claims", show_default=True, help="Name of the ablation; another for other settings.")
@click.option("--learn-on", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="For all runs.")
def train(folder: Path, files: tuple[Path, ...], jobs: int, learn_on: str, name: str, **options: Any) -> None:
    """Train every arm over every seed, from recorded facts alone, and say what of the claims is there."""
    began = time.monotonic()
    data = (folder / "runs-of" / name).absolute()
    data.mkdir(parents=True, exist_ok=True)
    with Store.open(f"sqlite:///{data / 'drkq.sqlite'}") as store:
        store.upgrade()
        kinds = {kind for file in files or (folder / FACTS,) for kind in import_facts(store, file).device_kinds}
    if len(kinds) != 1:
        raise click.ClickException(f"The facts are of {len(kinds)} kinds of device; they must be of one.")
    validation = {"base.validation.every_steps": 15, "base.validation.samples": 4}
    validation |= {"base.validation.problems": [str(folder / "heldout")]}
    protocol = _protocol(files or (folder / FACTS,))
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


def _read_subset(folder: Path) -> Subset:
    return subset(**json.loads((folder / SUBSET).read_text(encoding="utf-8")))


def _drkq(*arguments: str, **environment: str) -> None:
    """Run a command as people do."""
    say(f"drkq {' '.join(arguments[:2])} ...")
    done = subprocess.run([sys.executable, "-m", "drkernel_q", *arguments], check=False, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
