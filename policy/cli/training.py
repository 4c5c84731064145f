"""What `drkq train` does: from options to a configuration and a run, and what people see of it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from drkernel_q.cli.output import emit_json, emit_jsonl, emit_table, emit_text, say
from drkernel_q.errors import BadSettings, Cancelled
from drkernel_q.settings import Settings, load_settings
from policy.cli.live import Live
from policy.config import flat, load_config
from policy.model.shape import new_shape
from policy.training.estimate import Memory, memory, shape_of
from policy.training.recipe import TrainConfig

DEFAULT_PRESET = "tiny"
CONFIG = "config.toml"
_GIB = 2**30
#: Ranks that a dry run estimates memory for, where weights are sharded.
RANKS = (1, 2, 4, 8)


class Ranks(NamedTuple):
    """This process among those that train together."""

    rank: int
    world: int

    @classmethod
    def launched(cls) -> "Ranks":
        """Ask what `accelerate launch` or torchrun has left in the environment."""
        from accelerate.utils import get_int_from_env  # takes a second to import

        return cls(get_int_from_env(["RANK"], 0), get_int_from_env(["WORLD_SIZE"], 1))


class Order(NamedTuple):
    """What the command was asked to do."""

    settings: Settings
    config: TrainConfig
    folder: Path
    """Folder of the run; its name is that of the run."""
    resume: bool
    as_json: bool
    ranks: Ranks = Ranks(0, 1)


def prepare(options: dict[str, Any]) -> Order:
    """Resolve configuration and run.

    Raises:
        BadSettings: a setting is wrong, or the run is there already, or is not there to be resumed.
    """
    settings = load_settings(device=options["device"])
    out, name = options["out"], options["run"]
    ranks = Ranks(0, 1) if options["dry_run"] else Ranks.launched()
    if ranks.world > 1 and not (out or name or options["resume"]):
        raise BadSettings("Name the run by --run or --out: several processes train it together.")
    folder = _run_folder(
        out.parent if out else settings.data_dir / "runs", out.name if out else name, options["resume"]
    )
    if folder.exists() and not options["resume"] and ranks.rank == 0:
        raise BadSettings(
            f"The run `{folder.name}` is there already; go on with --resume, or give another name by --run."
        )
    return Order(settings, _config(options, folder), folder, options["resume"], options["as_json"], ranks)


def _run_folder(runs: Path, name: str | None, resume: bool) -> Path:
    """Find the folder of a run that is to go on, or name one that is not there yet."""
    if resume:
        begun = sorted(runs.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime)
        found = runs / name / CONFIG if name else (begun[-1] if begun else None)
        if found is None or not found.exists():
            raise BadSettings(f"There is no run {f'`{name}` ' if name else ''}in {runs} that could go on.")
        return found.parent
    if name is None:
        taken = {path.name for path in runs.glob("train*")}
        names = ["train", *(f"train-{number}" for number in range(2, len(taken) + 2))]
        return runs / next(each for each in names if each not in taken)
    return runs / name


def _config(options: dict[str, Any], folder: Path) -> TrainConfig:
    """Resolve the configuration; a run that goes on has its own, and flags change it."""
    preset, file = options["preset"], options["file"]
    if preset is None and file is None:
        preset, file = (None, folder / CONFIG) if options["resume"] else (DEFAULT_PRESET, None)
    names = options["problems"]
    flags = {
        "model.name": options["model"],
        "problems.names": names.split(",") if names else None,
        "steps": options["steps"],
        "seed": options["seed"],
        "sampler.name": options["sampler"],
        "staleness": options["staleness"],
        "judge_device": options["device"],
    }
    return load_config(TrainConfig, "train", preset, file, options["overrides"], flags)


def preview(order: Order) -> None:
    """Print the resolved configuration, how much a step is, and what memory it will take."""
    sizes, needed = _sizes(order.config), _memory(order.config)
    estimates = {ranks: memory._asdict() | {"total": memory.total} for ranks, memory in needed.items()}
    if order.as_json:
        config = order.config.model_dump(mode="json")
        shown = {"memory_bytes": estimates.get(1), "memory_bytes_by_ranks": estimates}
        emit_json({"run": order.folder.name, "config": config, "sizes": sizes} | shown)
        return
    emit_text(to_toml(order.config).rstrip())
    emit_text("")
    emit_table(("a step", "at most"), sizes.items())
    if not estimates:
        say(f"The shape of the model {order.config.model.name} is not known here, so its memory is not estimated.")
        return
    heads = ["about"] if len(estimates) == 1 else [f"a rank of {ranks}" for ranks in estimates]
    rows = [(name, *(f"{estimate[name] / _GIB:.2f} GiB" for estimate in estimates.values())) for name in estimates[1]]
    emit_text("")
    emit_table(("memory of the trainer", *heads), rows)


def _sizes(config: TrainConfig) -> dict[str, int]:
    trajectories = config.problems.per_step * config.rollout.group_size
    rows = trajectories * config.rollout.turns
    longest = config.rollout.context_tokens
    return {
        "problems": config.problems.per_step,
        "trajectories": trajectories,
        "rows": rows,
        "tokens of a row": longest,
        "tokens written": rows * config.rollout.sampling.max_new_tokens,
        "tokens learned from": rows * longest,
        "micro-batches": -(-rows * longest // max(config.batch.max_tokens, longest)),
    }


def _memory(config: TrainConfig) -> dict[int, Memory]:
    """Estimate what each rank needs, by how many there are; without sharding that is the same for any number."""
    new = config.model.name == "new"
    shape = new_shape(config.model.size, config.model.vocabulary) if new else shape_of(config.model.name)
    if shape is None:
        return {}
    tokens = max(config.batch.max_tokens, config.rollout.context_tokens)
    return {
        ranks: memory(
            shape,
            lora_rank=config.lora.rank,
            half=config.model.dtype == "bfloat16",
            checkpointing=config.model.gradient_checkpointing,
            tokens=tokens,
            logit_tokens=min(config.batch.chunk_tokens, tokens),
            shards=ranks,
        )
        for ranks in (RANKS if config.sharding == "full" else (1,))
    }


def to_toml(config: TrainConfig) -> str:
    """Write a configuration as a TOML file that gives it again: one line a setting, those that are not set left out."""
    settings = flat(config.model_dump(mode="json"))
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items() if value is not None)


async def run(order: Order) -> int:
    """Train, show what happens, and return the exit code.

    Raises:
        Cancelled: somebody stopped it; it was saved.
    """
    from policy.training.train import train  # torch and transformers take seconds to import

    if order.ranks.rank > 0:
        await train(order.config, order.folder, order.settings)
        return 0
    order.folder.mkdir(parents=True, exist_ok=True)
    (order.folder / CONFIG).write_text(to_toml(order.config), encoding="utf-8")
    with Live(order.config) as live:

        def watch(report: Any) -> None:
            live.report(report.step, report.metrics)
            if order.as_json:
                emit_jsonl([{"step": report.step, **report.metrics}])

        summary = await train(
            order.config, order.folder, order.settings, resume=order.resume, watch=watch, tell=live.tell, at=live.at
        )
    if summary.stopped:
        raise Cancelled(
            f"Stopped after step {summary.step} of {order.config.steps}, and saved; "
            f"go on with `drkq train --resume --run {order.folder.name}`."
        )
    if not order.as_json:
        emit_text(f"{order.folder.name}: {summary.step} steps; the model is in {order.folder / 'model'}")
    return 0
