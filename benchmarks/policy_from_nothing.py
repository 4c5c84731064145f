"""A policy from nothing: problems are generated, a tokenizer and a model are made and trained, the queue judges it.

`PYTHONPATH=. python benchmarks/policy_from_nothing.py --out /tmp/nothing` is meant for two cores; for a GPU,
`--size 20m --pieces words --problems 20000 --heldout 150 --rate 1.5e-3 --precision bfloat16 --batch 64 --device cuda`
is. What is trained on and what is measured with share no chain of operators. Each held-out problem is asked once,
greedily (`--samples` asks more often, at `--temperature`), and counts if the queue finds the kernel correct and clean.
One JSON line a stage goes to stdout; a stage whose files are there is not done again.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch

from drkernel_q.cli.output import emit_jsonl, emit_table, say
from drkernel_q.curriculum.conversation import single_turns
from drkernel_q.curriculum.exercise import Exercise
from drkernel_q.curriculum.generate import generate
from drkernel_q.evaluation import Evaluation, Protocol
from drkernel_q.prompt import load_templates
from drkernel_q.settings import load_settings
from policy.config import load_config
from policy.model.model import make_model
from policy.model.tokenizer import read_texts
from policy.rollouts.judging import open_judge
from policy.rollouts.rollout import GroupOrder, Rollout, RolloutConfig, rollout_groups
from policy.sampler.factory import open_sampler
from policy.sampler.protocol import Sampling
from policy.sft.config import SftConfig
from policy.sft.run import run_sft

#: Far from the seed of any training set, though chains are held out whatever the seed.
HELD_OUT_SEED = 1_000_003


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of everything that is made.")
@click.option("--levels", default="123", show_default=True, help="Levels of problems, as digits.")
@click.option("--problems", default=3000, show_default=True, help="Generated problems; nine of ten are trained on.")
@click.option("--longest", default=5, show_default=True, help="Longest chain of operators.")
@click.option("--heldout", default=60, show_default=True, help="Held-out problems that are asked.")
@click.option("--size", default="0.9m", show_default=True, help="Size of the model.")
@click.option("--pieces", default="lines", show_default=True, help="Pieces of the tokenizer.")
@click.option("--vocabulary", default=2048, show_default=True, help="Tokens of the tokenizer.")
@click.option("--epochs", type=float, default=5.0, show_default=True, help="Epochs of fine-tuning.")
@click.option("--batch", default=32, show_default=True, help="Rows of a step.")
@click.option("--rate", default=3e-3, show_default=True, help="Learning rate.")
@click.option("--precision", default="float32", show_default=True, help="float32 or bfloat16.")
@click.option("--device", default="cpu", show_default=True, help="Where kernels are judged, and the model runs.")
@click.option("--samples", default=1, show_default=True, help="Kernels a held-out problem.")
@click.option("--temperature", default=0.0, show_default=True, help="Temperature of the sampler.")
@click.option("--judge/--no-judge", "judges", default=True, show_default=True, help="Whether kernels are asked for.")
@click.option("--threads", default=1, show_default=True, help="Threads of torch on a CPU.")
@click.option("--seed", default=0, show_default=True, help="Seed of problems, weights and the order of rows.")
def main(out: Path, judges: bool, **options: Any) -> None:
    """Generate, train, and have held-out problems judged."""
    torch.set_num_threads(options["threads"])
    out.mkdir(parents=True, exist_ok=True)
    levels = [int(digit) for digit in options["levels"]]
    with stage("problems") as facts:
        facts["conversations"] = write_conversations(out / "train.jsonl", levels, options)
    with stage("model"):
        if not (out / "new").exists():
            texts = read_texts([out / "train.jsonl"])
            shape = {"vocabulary": options["vocabulary"], "pieces": options["pieces"], "seed": options["seed"]}
            make_model(out / "new", options["size"], texts, context_tokens=2048, **shape)
    with stage("training") as facts:
        if not (out / "sft" / "model").exists():
            facts.update(train(out, options))
    if not judges:
        return
    with stage("judging") as facts:
        facts.update(asyncio.run(judge(out, levels, options)))


@contextmanager
def stage(name: str) -> Iterator[dict[str, Any]]:
    """Time a stage, and print what it found."""
    say(f"{name} ...")
    facts: dict[str, Any] = {"stage": name}
    begun = time.monotonic()
    yield facts
    emit_jsonl([facts | {"wall_s": round(time.monotonic() - begun, 1)}])


def write_conversations(file: Path, levels: list[int], options: dict[str, Any]) -> int:
    """Write what is trained on."""
    if not file.exists():
        exercises = generate(options["seed"], options["problems"], levels)
        short = (each for each in exercises if len(each.chain) <= options["longest"])
        rows = single_turns(short, load_templates("compact"))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(file.read_text(encoding="utf-8").splitlines())


def train(out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune, or go on with it."""
    settings = {
        "model": str(out / "new"),
        "data.files": [str(out / "train.jsonl")],
        "data.max_tokens": 2048,
        "epochs": options["epochs"],
        "batch_size": options["batch"],
        "micro_batch_size": options["batch"],
        "optimizer.learning_rate": options["rate"],
        "precision": options["precision"],
        "device": "cpu" if options["device"] == "cpu" else "auto",
        "seed": options["seed"],
    }
    config = load_config(SftConfig, "sft", "tiny", flags=settings)
    result = run_sft(config, out / "sft", resume=(out / "sft").exists(), tell=say)
    return result.model_dump(mode="json")


async def judge(out: Path, levels: list[int], options: dict[str, Any]) -> dict[str, Any]:
    """Ask held-out problems and count what the queue finds correct and clean."""
    exercises = list(held_out(levels, options["heldout"], options["longest"]))
    level_of = {exercise.problem.hash: exercise.level for exercise in exercises}
    # Whether it is right is all that is asked, and that takes no clock and no profile on a GPU; integrity does.
    protocol = Protocol(trials=2, weight_seeds=1, timing_budget_s=0.5)
    sampling = Sampling(temperature=options["temperature"], max_new_tokens=600)
    config = RolloutConfig(group_size=options["samples"], turns=1, sampling=sampling, templates="compact")
    sampler = open_sampler(out / "sft" / "model", device=options["device"])
    found: list[tuple[int, Evaluation | None, bool]] = []
    begun = time.monotonic()
    async with (
        sampler,
        open_judge(load_settings(), run="nothing", device=options["device"], protocol=protocol) as judge,
    ):
        rollout = Rollout(sampler, judge, config, seed=options["seed"])
        async for rolled in rollout_groups((GroupOrder(exercise.problem) for exercise in exercises), rollout):
            for trajectory in rolled.group.trajectories:
                turn = trajectory.turns[0]
                found.append((level_of[rolled.order.problem.hash], turn.evaluation, turn.kernel is not None))
            say(f"{len(found)} judged, {sum(right(each) for _, each, _ in found)} right")
    show(found)
    return summary(found) | {"kernels_per_s": round(len(found) / (time.monotonic() - begun), 2)}


def held_out(levels: list[int], count: int, longest: int) -> Iterator[Exercise]:
    """Generate problems whose chains are never trained on."""
    left = count
    for exercise in generate(HELD_OUT_SEED, 100_000, levels):
        if left and exercise.split == "heldout" and len(exercise.chain) <= longest:
            left -= 1
            yield exercise
        if not left:
            return


def right(evaluation: Evaluation | None) -> bool:
    """Whether a kernel was found correct and honest."""
    return evaluation is not None and evaluation.honest_and_correct


def summary(found: list[tuple[int, Evaluation | None, bool]]) -> dict[str, Any]:
    """Count outcomes; what failed for infrastructure reasons is left out of the share."""
    known = [(level, evaluation) for level, evaluation, kernel in found if evaluation is not None or not kernel]
    outcomes = Counter(
        "no_kernel" if evaluation is None else f"{evaluation.outcome.value}/{evaluation.integrity.value}"
        for _, evaluation in known
    )
    return {
        "asked": len(found),
        "not_judged": len(found) - len(known),
        "correct_share": round(sum(right(each) for _, each in known) / max(len(known), 1), 4),
        "outcomes": dict(outcomes.most_common()),
    }


def show(found: list[tuple[int, Evaluation | None, bool]]) -> None:
    """Draw a table by level."""
    rows = []
    for level in sorted({level for level, _, _ in found}):
        facts = summary([each for each in found if each[0] == level])
        rows.append((level, facts["asked"], facts["correct_share"], json.dumps(facts["outcomes"])))
    emit_table(("level", "asked", "correct", "outcomes"), rows)


if __name__ == "__main__":
    main()
