"""`drkq bench`: grade a model, or a folder of kernels, on a suite of problems."""

import asyncio
from pathlib import Path
from typing import Any

import click

from policy.cli.writer import sampling_options

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("problems", nargs=-1, required=True, metavar="SUITE...")
@click.option(
    "--model", metavar="SPEC", help="Who writes: a folder, a name of the hub, vllm:, openai:, a URL, scripted:."
)
@click.option("--kernels", metavar="DIR", type=_PATH, help="Or a folder of kernels, named after their problems.")
@click.option("--samples", "-n", type=click.IntRange(1), default=1, show_default=True, help="Samples a problem.")
@click.option("--turns", "-t", type=click.IntRange(1), default=1, show_default=True, help="Turns of a sample.")
@click.option(
    "--baseline", default="eager", show_default=True, metavar="LIST", help="eager, compile, or both by comma."
)
@click.option(
    "--backend",
    type=click.Choice(["triton", "cuda", "any"]),
    default="triton",
    show_default=True,
    help="Whose kernels must run: own ones in Triton, in CUDA C++ too, or anybody's.",
)
@sampling_options
@click.option("--device", metavar="DEVICE", help="Where kernels are judged: auto, cpu, cuda:N (also: DRKQ_DEVICE).")
@click.option("--kernelbench", metavar="DIR", type=_PATH, help="A checkout of KernelBench (also: DRKQ_KERNELBENCH).")
@click.option(
    "--timing-budget", "timing_budget_s", type=click.FloatRange(0.1, 600), metavar="SECONDS", help="Of one evaluation."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every turn.")
@click.option("--run", metavar="NAME", help="Run to keep this under; one that is there already goes on.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv", "markdown", "latex"]),
    default="table",
    show_default=True,
    help="How grades are printed.",
)
@click.option(
    "--published/--no-published", default=True, help="Show the rows of the article for comparison (default: yes)."
)
def command(problems: tuple[str, ...], **options: Any) -> None:
    """Grade a model or kernels: Fast@p, pass@k, hack and lazy rates, with intervals.

    SUITE is builtin, builtin/1, kernelbench/1 ..., a folder, or a problem. Denominators are fixed: a sample that is
    missing, for whatever reason, is a failure. Nothing about one problem stops the others, and a command that was
    killed goes on under the same --run.

    \b
    Examples:
      drkq bench kernelbench/1 kernelbench/2 --model runs/rl/model -n 8 -t 3 --run rl
      drkq bench builtin --kernels kernels/ --baseline eager,compile --format markdown > grade.md
      drkq bench kernelbench/2 --model runs/rl/model --temperature 0 --format csv > grade.csv

    \b
    Exit codes:
      0 graded   65 bad input   69 no broker, worker or sampler   78 a setting is wrong
      130 interrupted; the same --run goes on
    """  # noqa: D301 - click wants the backspace character itself
    if (options["model"] is None) == (options["kernels"] is None):
        raise click.UsageError("Name who is graded by --model SPEC or by --kernels DIR.")
    from policy.cli import benching

    asyncio.run(benching.run(benching.prepare(problems, options)))
