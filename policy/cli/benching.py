"""What `drkq bench` does: from options to samples of every problem, and from these to grades."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from drkernel_q.cli import findings
from drkernel_q.cli.output import emit_csv, emit_json, emit_table, emit_text, progress, say
from drkernel_q.errors import BadSettings
from drkernel_q.evaluation import Protocol
from drkernel_q.problem import Problem, find_problems
from drkernel_q.settings import Settings, load_settings
from drkernel_q.store import Store
from drkernel_q.trajectory import Group
from policy.cli import layout
from policy.cli.writer import rollout_config
from policy.grading.bench import collected, kernel_files, sampled
from policy.grading.grade import Grade, Graded, grades, is_degenerate
from policy.rollouts.judging import open_judge
from policy.rollouts.resumption import announce
from policy.rollouts.rollout import Rollout
from policy.sampler.factory import open_sampler
from policy.sampler.scripted import ScriptedSampler

#: What may change when a run goes on.
FREE = ("problems", "device", "rollout.group_size", "rollout.turns")


class Order(NamedTuple):
    """What the command was asked to do."""

    settings: Settings
    problems: tuple[Problem, ...]
    protocol: Protocol
    options: dict[str, Any]
    run: str

    @property
    def name(self) -> str:
        """What is graded."""
        return str(self.options["model"] or self.options["kernels"])

    @property
    def turns(self) -> int:
        """Turns of a sample; a stored kernel is one."""
        return 1 if self.options["kernels"] else int(self.options["turns"])


def prepare(names: tuple[str, ...], options: dict[str, Any]) -> Order:
    """Read everything that the command names, and check it.

    Raises:
        BadProblem, BadSettings: something cannot be used.
    """
    settings = load_settings(device=options["device"], kernelbench=options["kernelbench"])
    budget = {} if options["timing_budget_s"] is None else {"timing_budget_s": options["timing_budget_s"]}
    try:
        protocol = Protocol(baselines=tuple(options["baseline"].split(",")), backend=options["backend"], **budget)
    except ValidationError:
        raise BadSettings(
            f"`{options['baseline']}` is no list of baselines; they are eager, compile and max-autotune."
        ) from None
    run = options["run"] or f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return Order(settings, tuple(find_problems(names, settings)), protocol, options, run)


async def run(order: Order) -> None:
    """Sample, grade and print."""
    with Store.open(order.settings.store) as store:
        store.upgrade()
        async with _rollout(order, store) as rollout:
            groups = await _groups(order, rollout)
    audits = findings.stored_audits(order.settings, order.problems)
    graded = [
        Graded(each, groups.get(each.hash, Group(problem_hash=each.hash, trajectories=())), audits.get(each.hash, {}))
        for each in order.problems
    ]
    found = grades(graded, samples=order.options["samples"], turns=order.turns, baselines=order.protocol.baselines)
    _emit(order, found)
    _remark(order, graded)


@asynccontextmanager
async def _rollout(order: Order, store: Store) -> AsyncIterator[Rollout]:
    """Open the sampler, if there is one, and the queue."""
    options = order.options
    model = options["model"]
    sampler = open_sampler(model, context_tokens=options["context_tokens"]) if model else ScriptedSampler([""])
    async with AsyncExitStack() as stack:
        with progress("getting ready") as tell:
            await stack.enter_async_context(sampler)
            opening = open_judge(order.settings, run=order.run, archive=store, protocol=order.protocol, tell=tell)
            judge = await stack.enter_async_context(opening)
        config = rollout_config(options, sampler, turns=order.turns, group_size=options["samples"])
        settings = {
            "graded": order.name,
            "problems": [problem.name for problem in order.problems],
            "device": order.settings.device,
            "seed": options["seed"],
            "protocol": order.protocol.model_dump(mode="json"),
            "rollout": config.model_dump(mode="json") if model else {},
        }
        if announce(store, order.run, kind="bench", settings=settings, free=FREE):
            say(f"The run {order.run} goes on.")
        yield Rollout(sampler, judge, config, run=order.run, seed=options["seed"], store=store)


async def _groups(order: Order, rollout: Rollout) -> dict[str, Group]:
    folder = order.options["kernels"]
    if folder is None:
        arriving = sampled(order.problems, rollout)
    else:
        arriving = collected(order.problems, kernel_files(folder, order.problems), rollout, say)
    groups: dict[str, Group] = {}
    with progress(f"0 of {len(order.problems)} problems") as tell:
        async for problem, group in arriving:
            groups[problem.hash] = group
            tell(f"{len(groups)} of {len(order.problems)} problems")
    return groups


def _emit(order: Order, found: list[Grade]) -> None:
    form, compared = order.options["form"], order.options["published"]
    if form == "json":
        emit_json({"run": order.run, "graded": order.name, "grades": found})
    elif form == "csv":
        emit_csv(*layout.rows(order.name, found))
    elif form == "table":
        for title, rows in layout.tables(order.name, found, compared=compared):
            emit_text(title)
            emit_table(layout.COLUMNS, rows)
        for line in layout.notes(found):
            emit_text(line)
    else:
        write = layout.markdown if form == "markdown" else layout.latex
        emit_text(write(order.name, found, compared=compared))


def _remark(order: Order, graded: list[Graded]) -> None:
    """Say what the numbers cannot: what is missing, and on which problems speed means nothing."""
    samples = order.options["samples"]
    short = [each for each in graded if len(each.group.trajectories) < samples]
    if short:
        say(f"{len(short)} problems have fewer than {samples} samples; what is missing counts as failures.")
    unknown = sum(
        turn.kernel is not None and turn.evaluation is None
        for each in graded
        for trajectory in each.group.trajectories
        for turn in trajectory.turns
    )
    if unknown:
        say(f"{unknown} kernels could not be judged, for reasons that are not theirs; they count as failures.")
    flagged = [each.problem.name for each in graded if is_degenerate(each)]
    if flagged:
        say(f"On {len(flagged)} problems audits say that speed is no achievement: {', '.join(flagged[:10])}.")
    unaudited = sum(not each.audits for each in graded)
    if unaudited:
        say(f"{unaudited} problems were never audited (`drkq problem audit`); speedups over 10 count as none on them.")
    say(f"Kept as the run {order.run}; `drkq run show {order.run}` shows its turns.")
