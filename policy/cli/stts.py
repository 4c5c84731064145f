"""`drkq stts`: give a model a problem, and let it refine its kernel for many turns."""

import asyncio
from pathlib import Path
from typing import Any

import click

from policy.cli.writer import sampling_options

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("problems", nargs=-1, required=True, metavar="PROBLEM...")
@click.option(
    "--model",
    required=True,
    metavar="SPEC",
    help="Who writes: a folder, a name of the hub, vllm:, openai:, a URL, scripted:.",
)
@click.option("--turns", type=click.IntRange(1), default=8, show_default=True, help="Turns of a chain.")
@click.option(
    "--strategy",
    type=click.Choice(["context", "vanilla"]),
    default="context",
    show_default=True,
    help="The prompt holds the best turns, or the whole history until the context is full.",
)
@click.option("--window", "-w", type=click.IntRange(0), default=4, show_default=True, help="Best turns in the prompt.")
@click.option(
    "--span", type=click.IntRange(1), help="Turns that a prompt grows to before it starts anew (default: w + 1)."
)
@click.option("--width", type=click.IntRange(1), default=1, show_default=True, help="Chains side by side.")
@click.option("--parallel", type=click.IntRange(1), default=1, show_default=True, help="Problems side by side.")
@click.option("--patience", type=click.IntRange(1), metavar="N", help="End a chain after N turns without a better one.")
@click.option("--target", type=float, metavar="P", help="End when a kernel is P times as fast as the reference.")
@click.option("--max-seconds", type=float, metavar="S", help="Begin no turn after S seconds.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Spend no more tokens, prompts included.")
@click.option("--max-cost", type=float, metavar="C", help="Spend no more than this, by the prices below.")
@click.option("--price-prompt", type=float, default=0.0, metavar="C", help="Price of a million prompt tokens.")
@click.option("--price-completion", type=float, default=0.0, metavar="C", help="Price of a million completion tokens.")
@sampling_options
@click.option("--device", metavar="DEVICE", help="Where kernels are judged: auto, cpu, cuda:N (also: DRKQ_DEVICE).")
@click.option(
    "--timing-budget", "timing_budget_s", type=click.FloatRange(0.1, 600), metavar="SECONDS", help="Of one evaluation."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every turn.")
@click.option("--run", metavar="NAME", help="Run to keep this under; one that is there already goes on.")
@click.option(
    "-o", "--output", metavar="PATH", type=_PATH, help="File for the best kernel; for several problems a folder."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(problems: tuple[str, ...], **options: Any) -> None:
    """Let a model refine kernels turn by turn, and keep the best one.

    PROBLEM is a name, `1/23` of KernelBench, a file, a folder, or a set such as builtin/1. Every turn is stored when it
    is judged: a command that was killed goes on under the same --run. The best kernel of the history is evaluated once
    more before it is claimed, and written to a file that runs by itself.

    \b
    Examples:
      drkq stts softmax --model runs/rl/model --turns 8
      drkq stts 1/23 --model Qwen/Qwen3-8B --turns 16 --patience 6 --max-tokens 500000
      drkq stts builtin/1 --model runs/rl/model --width 4 --target 1.5 --run search -o best/
      drkq stts softmax --model runs/rl/model --strategy vanilla --json | jq .problems[0].claim

    \b
    Exit codes:
      0 every problem has a kernel   1 some have none   65 bad input   69 no broker, worker or sampler
      78 a setting is wrong   130 interrupted; the same --run goes on
    """  # noqa: D301 - click wants the backspace character itself
    from policy.cli import searching

    order = searching.prepare(problems, options)
    raise SystemExit(asyncio.run(searching.run(order)))
