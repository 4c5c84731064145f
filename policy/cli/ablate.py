"""`drkq ablate`: arms of training runs over seeds, compared."""

from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("file", metavar="[FILE]", required=False, type=_PATH)
@click.option("--preset", metavar="NAME", help="article (default without FILE): the arms of the article's figures.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="One setting, such as base.steps=20.")
@click.option("--arms", metavar="LIST", help="Only these arms, by comma; the others are compared with the first.")
@click.option("--seeds", metavar="LIST", help="Seeds of every arm, by comma.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Training steps of every run.")
@click.option("--model", metavar="MODEL", help="What every run starts from, as for `drkq train`.")
@click.option("--problems", metavar="LIST", help="What every run trains on, by comma.")
@click.option("--run", "name", default="ablation", show_default=True, metavar="NAME", help="Name of the ablation.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Runs at once.")
@click.option("--figures", "only_figures", is_flag=True, help="Train nothing; compare what is there.")
@click.option("--dry-run", is_flag=True, help="List the runs and how they differ; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(**options: Any) -> None:
    """Train arms that differ in a few settings, each over several seeds, and draw how they compare.

    Each run is one of `drkq train`, named NAME-ARM-seedN. With --jobs several are trained at once, each with a store of
    its own; that is for kernels whose facts were recorded, since runs that judge at once disturb each other. The same
    command again goes on where it was stopped, and runs that are done are not done again. Curves (CSV), numbers with
    95 % intervals over seeds (JSON) and figures (Vega-Lite, and SVG where drkq[report] is installed) are written to the
    folder of the ablation.

    \b
    Examples:
      drkq ablate --model runs/sft/model --steps 30
      drkq ablate --arms trloo,grpo --seeds 0,1,2,3,4 --run bias
      drkq ablate mine.toml --dry-run
      DRKQ_RECORDED='sm_90/NVIDIA H200' drkq ablate recorded.toml --jobs 12
      drkq ablate --figures --json

    \b
    Exit codes:
      0 all runs are done   78 a setting is wrong   130 stopped; others are those of `drkq train`
    """  # noqa: D301 - click wants the backspace character itself
    from policy.cli import ablating

    order = ablating.prepare(options)
    if options["dry_run"]:
        ablating.preview(order)
        return
    if not options["only_figures"]:
        ablating.train(order)
    ablating.compare(order)
