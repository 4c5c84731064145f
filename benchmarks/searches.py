"""Whether to keep the best turns in the prompt is worth it: the same searches with both strategies (article, figure 6).

\b
    PYTHONPATH=. python benchmarks/searches.py --model DIR/sft/model --problems DIR/heldout --device cuda:0 --out found

Every problem is searched by `--width` chains of `--turns` turns with `context` and with `vanilla`, under the same
seeds, and each kernel is judged by the queue; with `--facts FILE` by what was measured before, and by nothing else.
What is told of a strategy after so many turns: the share of chains that have found a kernel of 1.2x by then, their best
speedup, the share whose turn of this number is one (a chain that ended before has none), and which share has ended,
because the context was full or at all (with `--facts`, three kernels in a row that nobody measured end a chain).
Intervals are over problems, those of the difference over problems in pairs. A search that was stopped goes on with the
same command, and `drkq report` draws the curves from the store in `--out`.
"""  # noqa: D301 - click reads the mark

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click

from drkernel_q.cli.output import emit_table, say
from drkernel_q.evaluation import Protocol
from drkernel_q.metric import Estimate, Speed, is_fast, mean, mean_interval, speed
from drkernel_q.problem import Problem, find_problems
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.store.fact_file import import_facts
from policy.rollouts.judging import Judge, open_judge
from policy.rollouts.recorded import RecordedJudge
from policy.rollouts.resumption import announce
from policy.rollouts.rollout import Rollout, RolloutConfig
from policy.sampler.factory import open_sampler
from policy.sampler.protocol import Sampler, Sampling
from policy.search.budget import Budget, Limits
from policy.search.context import Strategy
from policy.search.scaling import Chain, ScalingConfig, Search

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
#: A kernel counts that is so many times as fast as the reference.
FAST = 1.2


class Standing(NamedTuple):
    """Where the chains of one problem are after so many turns."""

    fast: float
    """Share of them that have found a fast kernel by then."""
    best: float
    """Mean of their best speedups, 0 without a kernel."""
    now: float
    """Share of them whose turn of this number is fast."""
    full: float
    """Share of them that a full context has ended by then."""
    ended: float
    """Share of them that have ended by then, for whatever reason."""


def standing(chains: Sequence[Chain], turn: int) -> Standing:
    """Say where chains are after `turn` turns."""
    speeds: list[list[Speed]] = [[speed(each) for each in chain.turns[:turn]] for chain in chains]
    return Standing(
        fast=mean(float(any(is_fast(each, FAST) for each in row)) for row in speeds),
        best=mean(max((each or 0.0 for each in row), default=0.0) for row in speeds),
        now=mean(float(len(row) == turn and is_fast(row[-1], FAST)) for row in speeds),
        full=mean(float(chain.stopped == "context" and len(chain.turns) < turn) for chain in chains),
        ended=mean(float(len(chain.turns) < turn) for chain in chains),
    )


def compared(found: Mapping[Strategy, Sequence[Sequence[Chain]]], turn: int) -> dict[str, dict[str, Estimate]]:
    """Return what each strategy has after `turn` turns, and by how much `context` is ahead, problem by problem."""
    standings = {strategy: [standing(chains, turn) for chains in each] for strategy, each in found.items()}
    pairs = zip(standings["context"], standings["vanilla"], strict=True)
    ahead = [Standing(*(mine - theirs for mine, theirs in zip(*pair, strict=True))) for pair in pairs]
    columns = standings | {"context - vanilla": ahead}
    return {
        str(name): {part: mean_interval([getattr(row, part) for row in rows]) for part in Standing._fields}
        for name, rows in columns.items()
    }


@asynccontextmanager
async def judge_of(store: Store, facts: Path | None, device: str, run: str) -> AsyncIterator[Judge]:
    """Open the queue, or what is known."""
    if facts is None:
        async with open_judge(load_settings(device=device), run=run, archive=store) as judge:
            yield judge
        return
    (kind,) = import_facts(store, facts).device_kinds
    yield RecordedJudge(store, kind, Protocol())


async def search(
    strategy: Strategy, problems: Sequence[Problem], sampler: Sampler, store: Store, options: Mapping[str, Any]
) -> list[tuple[Chain, ...]]:
    """Search all problems with one strategy; return their chains."""
    sampling = Sampling(temperature=options["temperature"], max_new_tokens=options["max_new_tokens"])
    config = RolloutConfig(
        group_size=options["width"], turns=options["turns"], sampling=sampling, templates=options["templates"]
    )
    settings = {"rollout": config.model_dump(mode="json"), "model": options["model"], "seed": options["seed"]}
    announce(store, strategy, kind="stts", settings=settings)
    async with judge_of(store, options["facts"], options["device"], strategy) as judge:
        rollout = Rollout(sampler, judge, config, run=strategy, seed=options["seed"], store=store)
        budget, done = Budget(Limits()), 0

        async def one(problem: Problem) -> tuple[Chain, ...]:
            nonlocal done
            chains = (await Search(problem, rollout, ScalingConfig(strategy=strategy), budget).run()).chains
            done += 1
            say(f"{strategy}: {done} of {len(problems)} problems, {budget.spent.prompt} tokens read")
            return chains

        return list(await asyncio.gather(*map(one, problems)))


async def search_all(problems: Sequence[Problem], options: Mapping[str, Any]) -> dict[Strategy, list[Any]]:
    """Search with one strategy after the other."""
    options["out"].mkdir(parents=True, exist_ok=True)
    with Store.open(f"sqlite:///{options['out'] / 'drkq.sqlite'}") as store:
        store.upgrade()
        async with open_sampler(options["model"], device=options["model_device"]) as sampler:
            return {strategy: await search(strategy, problems, sampler, store, options) for strategy in STRATEGIES}


@click.command(help=__doc__)
@click.option("--model", required=True, help="Who writes.")
@click.option("--problems", multiple=True, required=True, help="Names, files, folders, sets.")
@click.option("--device", default="cuda:0", show_default=True, help="Where kernels are judged.")
@click.option("--facts", type=click.Path(path_type=Path), help="File of facts that judges instead.")
@click.option("--model-device", default="auto", show_default=True, help="Where the model runs.")
@click.option("--turns", default=16, show_default=True, help="Turns of a chain.")
@click.option("--at", default="1,2,4,8,16", show_default=True, help="After how many turns it is looked, by comma.")
@click.option("--width", default=4, show_default=True, help="Chains of a problem.")
@click.option("--temperature", default=0.8, show_default=True)
@click.option("--max-new-tokens", default=256, show_default=True)
@click.option("--templates", default="brief", show_default=True, help="Prompt templates.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the store.")
def main(problems: tuple[str, ...], at: str, **options: Any) -> None:
    """Search, compare, print a table and one JSON line."""
    began = time.monotonic()
    chosen = find_problems(problems, load_settings())
    found = asyncio.run(search_all(chosen, options))
    tables = {turn: compared(found, turn) for turn in map(int, at.split(",")) if turn <= options["turns"]}
    rows = [
        (turn, name, *(f"{each.value:.3f} ({each.low:.3f} to {each.high:.3f})" for each in parts.values()))
        for turn, table in tables.items()
        for name, parts in table.items()
    ]
    emit_table(("turns", "strategy", "fast by then", "best speedup", "fast now", "context full", "ended"), rows)
    line = {"benchmark": "searches", "problems": len(chosen), "width": options["width"], "after": tables}
    click.echo(json.dumps(line | {"wall_s": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
