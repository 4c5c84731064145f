"""`drkq dataset`: training data out of the store and into it, in public schemas."""

from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path)
_form = click.option(
    "--form",
    type=click.Choice(["jsonl", "parquet", "folder"]),
    default="jsonl",
    show_default=True,
    help="JSON Lines, Parquet, or a folder with a card that `datasets` loads.",
)
_output = click.option("-o", "--output", "target", required=True, metavar="PATH", type=_PATH, help="File or folder.")
_kernelbench = click.option(
    "--kernelbench", metavar="DIR", type=_PATH, help="A checkout of KernelBench (also: DRKQ_KERNELBENCH)."
)


@click.group()
def command() -> None:
    """Write conversations and prompts for training, read public ones, and check them against a benchmark.

    \b
    Examples:
      drkq dataset export --run cold-start --honest --improved --best 2 --distinct -o cold-start.jsonl
      drkq dataset check --run cold-start --kernelbench ~/KernelBench
    """  # noqa: D301 - click wants the backspace character itself


@command.command()
@click.option("--run", required=True, help="The run whose trajectories are written.")
@click.option("--correct", is_flag=True, help="Only with a correct kernel.")
@click.option("--honest", is_flag=True, help="Only with a kernel that is correct and clean.")
@click.option("--improved", is_flag=True, help="Only where a later turn earns more than an earlier one.")
@click.option("--min-speedup", type=click.FloatRange(0), metavar="X", help="Only with a clean kernel X times as fast.")
@click.option("--best", type=click.IntRange(1), metavar="N", help="The N best of each problem.")
@click.option("--cut-after-best", is_flag=True, help="Leave out the turns after the best one.")
@click.option("--distinct", is_flag=True, help="One of those whose kernels differ in names and layout alone.")
@click.option("--uncontaminated", is_flag=True, help="Leave out problems that are like one of KernelBench.")
@click.option("--repo", default="", metavar="NAME", help="Where the references are from, for `repo_name`.")
@click.option("--licence", default="other", show_default=True, metavar="ID", help="Licence that the card names.")
@_kernelbench
@_form
@_output
@click.option("--json", "as_json", is_flag=True, help="Say what was left out as a JSON document.")
def export(**options: Any) -> None:
    """Write trajectories as conversations in the schema of public cold-start data: `messages`, five turns are ten.

    \b
    Examples:
      drkq dataset export --run cold-start --honest --improved -o cold-start.jsonl
      drkq dataset export --run cold-start --best 1 --cut-after-best --form folder -o cold-start
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.cli import gathering

    gathering.export(options)


@command.command("import")
@click.argument("file", metavar="FILE", type=_PATH)
@click.option("--run", required=True, help="Run to keep the trajectories under.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
def import_conversations(file: Path, run: str, as_json: bool) -> None:
    """Read conversations with `messages` and `original_python_code` into the store; what is there already stays.

    FILE is JSON Lines, Parquet, or a folder of Parquet files. Kernels are taken out of the answers; nothing is judged.

    \b
    Examples:
      drkq dataset import drkernel-coldstart-8k --run public
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.cli import gathering

    gathering.import_conversations(file, run, as_json=as_json)


@command.command()
@click.argument("names", metavar="[NAME|FILE|FOLDER]...", nargs=-1, required=True)
@click.option("--templates", default="default", show_default=True, metavar="NAME|DIR", help="What is asked.")
@_kernelbench
@_form
@_output
def prompts(**options: Any) -> None:
    """Write problems as prompts for reinforcement learning, in the schema of public RL data.

    \b
    Examples:
      drkq dataset prompts generated/problems/train/level1 --templates compact -o prompts.jsonl
      drkq dataset prompts softmax matmul --form parquet -o prompts.parquet
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.cli import gathering

    gathering.prompts(options)


@command.command()
@click.argument("names", metavar="[NAME|FILE|FOLDER]...", nargs=-1)
@click.option("--run", help="The problems of this run, too.")
@_kernelbench
@click.option("--rows", metavar="FILE", type=_PATH, help="Or compare with the references in these rows.")
@click.option(
    "--similarity",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Share of pieces in common from which two references are the same but for details.",
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list.")
def check(**options: Any) -> None:
    """Find problems that are like one of a benchmark: names, sizes and layout do not count.

    \b
    Examples:
      drkq dataset check generated/problems/train/level2 --kernelbench ~/KernelBench
      drkq dataset check --run cold-start --rows drkernel-validation.parquet --json

    \b
    Exit codes:
      0 none is   1 some are   65 bad input
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.cli import gathering

    raise SystemExit(gathering.check(options))
