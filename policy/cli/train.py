"""`drkq train`: multi-turn reinforcement learning with TRLOO, MRS, PR and PRS."""

import asyncio
from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--preset", metavar="NAME", help="tiny (default without --config), small, paper-8b or paper-14b.")
@click.option("--config", "file", metavar="FILE", type=_PATH, help="A TOML file; it wins over the preset.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="One setting, such as loss.clip_low=0.1.")
@click.option("--model", metavar="MODEL", help="A folder, a GGUF file, a name of the hub, or `new`.")
@click.option("--problems", metavar="LIST", help="What to train on, by comma: names, sets (builtin/1), folders.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Training steps of the whole run.")
@click.option("--seed", type=int, metavar="N", help="Seed of the run.")
@click.option("--sampler", metavar="NAME", help="Who writes: own (default), vllm, URLs of vLLM, or scripted:FILE.")
@click.option("--staleness", type=click.IntRange(0, 1), help="Steps that sampling may be ahead of learning.")
@click.option("--device", metavar="DEVICE", help="Where kernels are judged: auto, cpu, cuda:N (also: DRKQ_DEVICE).")
@click.option("--run", metavar="NAME", help="Name of the run (default: train, train-2, ...).")
@click.option("--out", metavar="DIR", type=_PATH, help="Folder of the run (default: runs/NAME of the data directory).")
@click.option("--resume", is_flag=True, help="Go on with the run of this name, or with the latest.")
@click.option("--dry-run", is_flag=True, help="Show configuration, sizes and an estimate of memory; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a step on standard output.")
def command(**options: Any) -> None:
    """Train a model that writes kernels, by reinforcement learning over several turns.

    Each step writes kernels for some problems, several trajectories a problem, has them judged through the queue,
    learns from what they earned, and hands the new weights to the sampler. Everything is kept in the store and in a
    folder of the run; one that was stopped, by Ctrl-C, SIGTERM or a crash, goes on with --resume as if it never had
    been.

    \b
    Examples:
      drkq train
      drkq train --preset small --model runs/sft/model --problems builtin/1,builtin/2
      drkq train --preset paper-14b --config mine.toml --set optimizer.learning_rate=2e-6 --dry-run
      drkq train --resume --steps 200
      accelerate launch -m drkernel_q train --preset paper-8b --set lora.rank=64 --out runs/rl

    \b
    Exit codes:
      0 trained to the last step   65 bad input   69 no broker, worker or sampler
      78 a setting is wrong   130 stopped, and saved
    """  # noqa: D301 - click wants the backspace character itself
    from policy.cli import training

    order = training.prepare(options)
    if options["dry_run"]:
        training.preview(order)
        return
    raise SystemExit(asyncio.run(training.run(order)))
