"""What `drkq stts` does: from options to searches, a board of turns, and files of what was found."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from drkernel_q.cli import findings
from drkernel_q.cli.output import emit_json, emit_text, progress, say
from drkernel_q.errors import BadProblem, BadSettings, PromptTooLong
from drkernel_q.evaluation import Protocol
from drkernel_q.problem import Problem, find_problems
from drkernel_q.settings import Settings, load_settings
from drkernel_q.standalone import standalone
from drkernel_q.store import Store
from drkernel_q.trajectory import Turn
from policy.cli import board
from policy.cli.writer import rollout_config
from policy.rollouts.judging import QueueJudge, open_judge
from policy.rollouts.resumption import announce
from policy.rollouts.rollout import Rollout
from policy.sampler.factory import open_sampler
from policy.sampler.protocol import Sampler
from policy.search.budget import Budget, Limits, Prices
from policy.search.claim import Claim, claim
from policy.search.scaling import ScalingConfig, Search, Searched, tokens_of

#: What may change when a search goes on.
FREE = ("problems", "device", "scaling.limits", "rollout.turns", "rollout.group_size")


class Order(NamedTuple):
    """What the command was asked to do."""

    settings: Settings
    problems: tuple[Problem, ...]
    scaling: ScalingConfig
    options: dict[str, Any]
    run: str


class Outcome(NamedTuple):
    """What came of one problem."""

    searched: Searched
    claim: Claim | None
    file: Path | None


def prepare(problems: tuple[str, ...], options: dict[str, Any]) -> Order:
    """Read everything that the command names, and check it.

    Raises:
        BadProblem, BadSettings: something cannot be used.
    """
    settings = load_settings(device=options["device"])
    try:
        limits = Limits(
            patience=options["patience"],
            target=options["target"],
            seconds=options["max_seconds"],
            tokens=options["max_tokens"],
            cost=options["max_cost"],
            prices=Prices(prompt=options["price_prompt"], completion=options["price_completion"]),
        )
        scaling = ScalingConfig(
            strategy=options["strategy"], window=options["window"], span=options["span"], limits=limits
        )
    except ValidationError as error:
        raise BadSettings(f"A setting is wrong: {error.errors()[0]['msg']}.") from None
    if limits.cost is not None and not limits.prices.prompt + limits.prices.completion:
        raise BadSettings("--max-cost needs prices; give --price-prompt and --price-completion.")
    run = options["run"] or f"stts-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return Order(settings, tuple(find_problems(problems, settings)), scaling, options, run)


async def run(order: Order) -> int:
    """Search, tell, and return the exit code."""
    budget = Budget(order.scaling.limits)
    with Store.open(order.settings.store) as store:
        store.upgrade()
        async with _rollout(order, store) as (rollout, fresh):
            with board.board(budget) as told:
                outcomes = await _search_all(order, rollout, fresh, budget, told)
    if order.options["as_json"]:
        documents = [_document(each, rollout.sampler) for each in outcomes]
        emit_json({"run": order.run, "spent": budget.spent._asdict(), "cost": budget.cost, "problems": documents})
    else:
        for each in outcomes:
            emit_text(_line(each))
        say(f"Kept as the run {order.run}; `drkq run show {order.run}` shows its turns.")
    return 0 if outcomes and all(each.claim for each in outcomes) else 1


@asynccontextmanager
async def _rollout(order: Order, store: Store) -> AsyncIterator[tuple[Rollout, QueueJudge]]:
    """Open the sampler and the queue."""
    options = order.options
    sampler = open_sampler(options["model"], context_tokens=options["context_tokens"])
    protocol = Protocol()
    if options["timing_budget_s"] is not None:
        protocol = Protocol(timing_budget_s=options["timing_budget_s"])
    async with AsyncExitStack() as stack:
        with progress("getting ready") as tell:
            await stack.enter_async_context(sampler)
            opening = open_judge(order.settings, run=order.run, archive=store, protocol=protocol, tell=tell)
            judge = await stack.enter_async_context(opening)
        config = rollout_config(options, sampler, turns=options["turns"], group_size=options["width"])
        settings = {
            "model": options["model"],
            "problems": [problem.name for problem in order.problems],
            "device": order.settings.device,
            "seed": options["seed"],
            "scaling": order.scaling.model_dump(mode="json"),
            "rollout": config.model_dump(mode="json"),
        }
        if announce(store, order.run, kind="stts", settings=settings, free=FREE):
            say(f"The run {order.run} goes on.")
        rollout = Rollout(sampler, judge, config, run=order.run, seed=options["seed"], store=store)
        yield rollout, judge.afresh()


async def _search_all(
    order: Order, rollout: Rollout, fresh: QueueJudge, budget: Budget, told: board.Told
) -> list[Outcome]:
    """Search every problem; one that cannot be used is told and left out."""
    audits = findings.stored_audits(order.settings, order.problems)
    room = asyncio.Semaphore(order.options["parallel"])

    async def one(problem: Problem) -> Outcome | None:
        search = Search(
            problem,
            rollout,
            order.scaling,
            budget,
            audits=audits.get(problem.hash),
            told=lambda step: told(problem.name, step),
        )
        async with room:
            try:
                searched = await search.run()
                claimed = await claim(searched, fresh)
            except (BadProblem, PromptTooLong) as error:
                if len(order.problems) == 1:
                    raise
                say(f"{problem.name} is left out. {error}")
                return None
        return Outcome(searched, claimed, _write(order, claimed, problem) if claimed else None)

    tasks = [asyncio.create_task(one(problem)) for problem in order.problems]
    try:
        found = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [each for each in found if each is not None]


def _write(order: Order, claimed: Claim, problem: Problem) -> Path:
    """Write the claimed kernel to where it was asked for, or to the run's folder."""
    path = order.options["output"]
    if path is None or len(order.problems) > 1:
        folder = path or order.settings.data_dir / "runs" / order.run
        path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', problem.name)}.py"
    found = claimed.found
    origin = (
        f"drkq stts with {order.options['model']}: turn {found.turn.number} of chain {found.chain}, run {order.run}."
    )
    text = standalone(problem, claimed.kernel, claimed.evaluation, name=path.name, origin=origin)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise BadSettings(f"{path} cannot be written: {error.strerror}.") from error
    return path  # type: ignore[no-any-return]


def _line(outcome: Outcome) -> str:
    searched, claimed, file = outcome
    turns = sum(len(chain.turns) for chain in searched.chains)
    ends = ", ".join(sorted({chain.stopped for chain in searched.chains}))
    tail = [f"last: {', '.join(_last(chain.last) for chain in searched.chains)}", f"{turns} turns, ended by {ends}"]
    if claimed is None:
        return "   ".join([searched.problem.name, "no kernel holds", *tail])
    found = claimed.found
    again = (
        f"best {board.interval(claimed.evaluation)}, re-timed ({board.interval(found.turn.evaluation)} in the search)"
    )
    return "   ".join(
        [searched.problem.name, again, f"turn {found.turn.number} of chain {found.chain}", *tail, str(file)]
    )


def _last(turn: Turn | None) -> str:
    if turn is None:
        return "none"
    evaluation = turn.evaluation
    if evaluation is None or not evaluation.honest_and_correct:
        return board.outcome(evaluation, kernel=turn.kernel is not None)
    return board.interval(evaluation)


def _document(outcome: Outcome, sampler: Sampler) -> dict[str, Any]:
    """Return the JSON document of one problem; its fields are described in docs/reference/stts.md."""
    searched, claimed, file = outcome
    chains = [
        {
            "chain": chain.number,
            "stopped": chain.stopped,
            "turns": [_turn(turn, reward, sampler) for turn, reward in zip(chain.turns, chain.rewards, strict=True)],
        }
        for chain in searched.chains
    ]
    problem = {"name": searched.problem.name, "hash": searched.problem.hash}
    return {"problem": problem, "chains": chains, "claim": claimed and _claimed(claimed), "file": file and str(file)}


def _claimed(claimed: Claim) -> dict[str, Any]:
    return {
        "chain": claimed.found.chain,
        "turn": claimed.found.turn.number,
        "reward": claimed.found.reward,
        "kernel": claimed.kernel.model_dump(mode="json") | {"hash": claimed.kernel.hash},
        "evaluation": claimed.evaluation.model_dump(mode="json"),
        "passed_over": claimed.passed_over,
    }


def _turn(turn: Turn, reward: float | None, sampler: Sampler) -> dict[str, Any]:
    evaluation = turn.evaluation
    timing = evaluation.timing if evaluation else None
    return {
        "turn": turn.number,
        "outcome": evaluation and evaluation.outcome.value,
        "integrity": evaluation and evaluation.integrity.value,
        "speedup": timing and timing.speedup,
        "speedup_low": timing and timing.speedup_low,
        "speedup_high": timing and timing.speedup_high,
        "profile_ratio": evaluation and evaluation.profile_ratio,
        "reward": reward,
        "kernel_hash": turn.kernel and turn.kernel.hash,
        "tokens": tokens_of(turn, sampler)._asdict(),
    }
