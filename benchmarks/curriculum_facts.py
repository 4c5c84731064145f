"""Facts of the curriculum on one device, as a small Parquet file that `drkq db import` reads.

`PYTHONPATH=. python benchmarks/curriculum_facts.py --device cuda:0 -o curriculum_facts.parquet` judges 40 problems with
8 solutions each by the default protocol, which is that of rollouts: all but the second fused kernel and plain torch.
`--device cuda` means all devices. It prints one JSON line. What is in the store already is not judged again, so it may
be stopped and started again; after `--seconds` it writes what there is.
"""

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import click

from benchmarks.curriculum import judged
from drkernel_q.cli.output import say
from drkernel_q.curriculum import Quality, generate
from drkernel_q.evaluation import Protocol
from drkernel_q.settings import Settings, load_settings
from drkernel_q.store import Store
from drkernel_q.store.export import write_file

RUN = "curriculum-facts"
#: Solutions between two lines about how far it is.
EVERY = 20


@click.command(help=__doc__)
@click.option("--seed", default=0, show_default=True, help="Seed of the set.")
@click.option("--problems", default=40, show_default=True, help="Problems, from the first.")
@click.option("--device", default="cuda:0", show_default=True, help="Device to measure on.")
@click.option("--seconds", default=1e9, help="End after this, whatever is under way.")
@click.option("-o", "--output", "target", required=True, type=click.Path(path_type=Path), help="Parquet file to write.")
def main(seed: int, problems: int, device: str, seconds: float, target: Path) -> None:
    """Judge, and write the file."""
    click.echo(json.dumps(asyncio.run(_record(seed, problems, load_settings(device=device), seconds, target))))


async def _record(seed: int, problems: int, settings: Settings, seconds: float, target: Path) -> dict[str, object]:
    chosen = [
        (exercise, solution)
        for exercise in generate(seed, problems)
        for solution in exercise.solutions
        if solution.quality is not Quality.FALLBACK and solution.kernel.name != "fused2.py"
    ]
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with Store.open(settings.store) as store:
        store.upgrade()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for found in judged(chosen, settings, store, run=RUN, protocol=Protocol()):
                    counts["judged"] += found.reply.evaluation is not None
                    counts["unexpected"] += not found.expected
                    if not found.expected:
                        say(f"{found.exercise.problem.name} {found.solution.kernel.name}: {found.shown}")
                    if counts["judged"] % EVERY == 0:
                        say(f"{counts['judged']} of {len(chosen)} after {time.monotonic() - began:.0f} s")
        write_file(store, "facts", "parquet", target, RUN)
    wall_s = round(time.monotonic() - began, 1)
    size = target.stat().st_size
    return {"benchmark": "curriculum_facts", "solutions": len(chosen), **counts, "file_bytes": size, "wall_s": wall_s}


if __name__ == "__main__":
    main()
