"""`drkq collect`: cold-start collection."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drkernel_q.cli.output import emit_json, emit_table, progress, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from drkernel_q.settings import Settings
    from policy.rollouts.collect import CollectConfig, Collection, Tally
    from policy.sampler.factory import SamplerOptions

_PATH = click.Path(path_type=Path)
_TICK_S = 1.0


@click.command()
@click.option("--model", metavar="MODEL", help="Who writes: a folder, a GGUF file, vllm:MODEL, a URL, openai:MODEL ...")
@click.option("--problems", multiple=True, metavar="NAME", help="A suite, a folder, a file or a name; repeatable.")
@click.option("--run", required=True, metavar="NAME", help="Run of the store; one that was begun goes on.")
@click.option("--preset", metavar="NAME", help="small or paper.")
@click.option("--config", "file", metavar="FILE", type=_PATH, help="A TOML file of settings, which win over a preset.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="One setting: rollout.context_tokens=8192."
)
@click.option("--samples", type=click.IntRange(1), metavar="K", help="Trajectories of each problem.")
@click.option("--turns", type=click.IntRange(1), metavar="T", help="Longest trajectory.")
@click.option("--templates", metavar="NAME|DIR", help="What is asked: default, compact, or a folder.")
@click.option("--temperature", type=click.FloatRange(0), metavar="X", help="0 takes the likeliest token.")
@click.option("--max-new-tokens", type=click.IntRange(1), metavar="N", help="Longest answer.")
@click.option("--seed", type=int, metavar="N", help="Seed of all turns.")
@click.option("--device", metavar="DEVICE", help="Where kernels are judged: auto, cpu, cuda or cuda:N.")
@click.option("--model-device", default="auto", show_default=True, metavar="DEVICE", help="Where a local model runs.")
@click.option("--trials", type=click.IntRange(1, 100), help="Correctness trials (default: 5).")
@click.option("--kernelbench", metavar="DIR", type=_PATH, help="A checkout of KernelBench (also: DRKQ_KERNELBENCH).")
@click.option("--json", "as_json", is_flag=True, help="Write what was collected as one JSON document.")
def command(
    run: str,
    preset: str | None,
    file: Path | None,
    overrides: tuple[str, ...],
    device: str | None,
    model_device: str,
    trials: int | None,
    kernelbench: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Have a model write kernels over several turns, judge and store them: data to begin training with.

    Every turn is stored once it is judged. A run that was stopped, by Ctrl-C or by kill -9, goes on with the same
    command: nothing is made twice, and the end is that of a run that nobody stopped. `drkq dataset export` writes the
    best of it.

    \b
    Examples:
      drkq collect --model vllm:Qwen/Qwen3-8B --problems kernelbench/1 --run cold-start --preset paper
      drkq collect --model models/small --problems generated/problems/train --run small --preset small --device cpu
      drkq collect --model openai:gpt-5 --problems my_problems --run teacher --samples 2 --turns 3
      drkq dataset export --run cold-start --honest --improved -o cold-start.jsonl

    \b
    Exit codes:
      0 all there   65 bad data or model   69 no broker, worker or sampler   78 a setting is wrong   130 stopped
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.settings import load_settings
    from policy.config import load_config
    from policy.rollouts.collect import CollectConfig

    config = load_config(CollectConfig, "collect", preset, file, overrides, _settings(flags))
    settings = load_settings(device=device, kernelbench=kernelbench)
    with progress("getting ready") as tell:
        tally = asyncio.run(_run(config, settings, run, {"device": model_device}, trials, tell))
    document = {"run": run} | tally.document()
    if as_json:
        emit_json(document)
    else:
        emit_table(("what", "value"), document.items())
    if tally.turns and not tally.kernels:
        cut = " All were cut at their longest." if tally.cut == tally.turns else ""
        say(f"No answer holds a kernel.{cut} A model that never saw one has to learn it first: `drkq sft`.")


def _settings(flags: dict[str, Any]) -> dict[str, Any]:
    """Name flags as settings; those that were not given are None."""
    places = {
        "samples": "rollout.group_size",
        "turns": "rollout.turns",
        "templates": "rollout.templates",
        "temperature": "rollout.sampling.temperature",
        "max_new_tokens": "rollout.sampling.max_new_tokens",
    }
    return {places.get(name, name): None if value == () else value for name, value in flags.items()}


async def _run(
    config: "CollectConfig",
    settings: "Settings",
    run: str,
    options: "SamplerOptions",
    trials: int | None,
    tell: "Callable[[str], None]",
) -> "Tally":
    from drkernel_q.evaluation import Protocol
    from drkernel_q.problem import find_problems
    from drkernel_q.store import Store
    from policy.rollouts.collect import Collection, collect
    from policy.rollouts.judging import open_judge
    from policy.sampler.factory import open_sampler

    problems = find_problems(config.problems, settings)
    protocol = Protocol() if trials is None else Protocol(trials=trials)
    with Store.open(settings.store) as store:
        store.upgrade()
        async with (
            open_sampler(config.model, **options) as sampler,
            open_judge(settings, run=run, archive=store, protocol=protocol, tell=tell) as judge,
        ):
            collection = Collection(sampler, judge, config, run=run, store=store)
            ticker = asyncio.create_task(_tick(collection, tell))
            try:
                return await collect(problems, collection)
            finally:
                ticker.cancel()
                with suppress(asyncio.CancelledError):
                    await ticker


async def _tick(collection: "Collection", tell: "Callable[[str], None]") -> None:
    """Say how far it is, on a terminal every second and elsewhere when a trajectory is finished."""
    import sys

    shown = -1
    while True:
        if sys.stderr.isatty() or collection.tally.finished != shown:
            shown = collection.tally.finished
            tell(collection.tally.line(collection.flow.evaluations_in_flight))
        await asyncio.sleep(_TICK_S)
