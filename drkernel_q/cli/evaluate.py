"""`drkq eval`: judge kernels against a problem, through the queue."""

import asyncio
from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path)
_KERNEL = click.Path(path_type=Path, allow_dash=True)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_KERNEL)
@click.option("--problem", metavar="NAME", help="The problem: `softmax`, `1/23`, FILE.parquet#ROW.")
@click.option("--reference", metavar="FILE", type=_PATH, help="Or the file that holds the reference Model.")
@click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (also: DRKQ_DEVICE).")
@click.option(
    "--baseline",
    default="eager",
    show_default=True,
    metavar="LIST",
    help="eager, compile, max-autotune, or several by comma.",
)
@click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help="Replace a constant of the problem.")
@click.option(
    "--precision",
    type=click.Choice(["reference", "tf32", "fp16", "bf16"]),
    help="Least precise products that count as full precision, on both sides.",
)
@click.option("--mode", type=click.Choice(["eval", "train"]), help="Module mode that is scored (default: eval).")
@click.option("--backend", type=click.Choice(["triton", "cuda", "any"]), help="Own kernels that must run.")
@click.option("--trials", type=click.IntRange(1, 100), help="Correctness trials (default: 5).")
@click.option(
    "--timing-budget",
    "timing_budget_s",
    type=click.FloatRange(0.1, 600),
    metavar="SECONDS",
    help="Time that timing aims to stay within (default: 5).",
)
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(1, 3600),
    default=240.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time for one evaluation.",
)
@click.option("--kernelbench", metavar="DIR", type=_PATH, help="A checkout of KernelBench (also: DRKQ_KERNELBENCH).")
@click.option("--run", default="eval", show_default=True, metavar="NAME", help="Run of the store to keep this under.")
@click.option("--fresh", is_flag=True, help="Evaluate also what was evaluated before.")
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    metavar="N",
    help="Evaluate each kernel N times, each time anew.",
)
@click.option("--feedback", "form", flag_value="feedback", help="What the author of the kernel is told, as text.")
@click.option("--json", "form", flag_value="json", help="One JSON document (a list for several files).")
@click.option("--jsonl", "form", flag_value="jsonl", help="One JSON document a line, as they come.")
def command(problem: str | None, reference: Path | None, **options: Any) -> None:
    """Judge kernels: correct? honest? how fast? how much of the device time is their own?

    A kernel is a Python file that defines ModelNew; `-` reads one from standard input. With no broker URL set, a
    broker and a worker are started for this command and stopped at its end. What was evaluated before, on such a device
    and by the same versions, is answered from memory, unless it is to be --fresh.

    \b
    Examples:
      drkq eval examples/softmax.py --problem softmax
      drkq eval kernel.py --reference model.py --device cuda:0 --baseline eager,compile
      drkq eval kernel.py --problem 1/23 --kernelbench ~/KernelBench --set dim=4096 --json | jq .timing
      cat kernel.py | drkq eval - --problem softmax --feedback

    \b
    Exit codes:
      0 every kernel is correct and clean   1 a kernel is at fault   65 bad input
      69 no broker or worker   75 timed out waiting
    """  # noqa: D301 - click wants the backspace character itself
    if (problem is None) == (reference is None):
        raise click.UsageError("Name the problem by --problem NAME or by --reference FILE.")
    from drkernel_q.cli import judging

    order = judging.prepare(problem, reference, options)
    raise SystemExit(asyncio.run(judging.run(order)))
