"""What `drkq problem audit` does: from names to requests, through the queue, to lines, documents and a table."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.cli.findings import document, line, markdown, stored_audits
from drkernel_q.cli.judging import with_clock
from drkernel_q.cli.output import emit_json, emit_text, progress, say
from drkernel_q.errors import BadInput, DrkqError
from drkernel_q.local import join
from drkernel_q.problem import Problem, find_problems, load_suite, parse_override
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.handle import unwrap_audit
from drkernel_q.request import Priority
from drkernel_q.settings import Settings, load_settings


class Order(NamedTuple):
    """What the command was asked to do."""

    settings: Settings
    problems: tuple[Problem, ...]
    compile: bool
    deadline_s: float
    force: bool
    as_json: bool
    target: Path | None


def prepare(names: tuple[str, ...], suites: tuple[str, ...], options: dict[str, Any]) -> Order:
    """Read every problem that the command names.

    Raises:
        BadProblem: one of them is no reference; of a suite such files are only told of.
        BadInput: there is no such constant to replace.
    """
    settings = load_settings(device=options["device"], kernelbench=options["kernelbench"])
    overrides = dict(map(parse_override, options["overrides"]))
    found = [*find_problems(names, settings), *(each for suite in suites for each in load_suite(suite, settings, say))]
    resized = [problem.resized(overrides) if overrides else problem for problem in found]
    problems = {problem.hash: problem for problem in resized}
    return Order(
        settings,
        tuple(problems.values()),
        options["compile"],
        options["deadline_s"],
        options["force"],
        options["as_json"],
        options["target"],
    )


async def run(order: Order) -> int:
    """Audit, print in the wanted form, and return the exit code: 0 unless something failed that is no problem's."""
    audits: dict[str, Audit] = {}
    code = 0
    device = order.settings.device
    with progress("getting ready") as tell, join(order.settings, [device], tell) as url:
        async with EvaluationQueue(url) as queue:
            if not order.force:
                audits = _known(order, await queue.device_kinds(device))
            for problem in order.problems:
                if problem.hash in audits:
                    _show(order, problem, audits[problem.hash], "   (stored)")
            requests = {each.id: each for each in _requests(order, audits)}
            replies = queue.evaluate_many(requests.values(), device=device, priority=Priority.BACKFILL)
            async for reply in with_clock(replies, len(requests), tell, "auditing"):
                problem = requests[reply.id].problem
                try:
                    audits[problem.hash] = unwrap_audit(reply)
                except DrkqError as error:
                    code = max(code, error.exit_code)
                    say(f"{problem.name}: no audit. {error}")
                else:
                    _show(order, problem, audits[problem.hash])
            await queue.written()  # or the next command might not find them
    _conclude(order, [(problem, audits[problem.hash]) for problem in order.problems if problem.hash in audits])
    return code


def _known(order: Order, kinds: frozenset[str]) -> dict[str, Audit]:
    """Find the problems that need no further audit: they have one for every kind of device that may be asked."""
    stored = stored_audits(order.settings, order.problems)
    return {name: found[min(kinds)] for name, found in stored.items() if kinds <= found.keys()}


def _requests(order: Order, known: dict[str, Audit]) -> Iterator[AuditRequest]:
    for problem in order.problems:
        if problem.hash not in known:
            yield AuditRequest(
                id=uuid.uuid4().hex,
                problem=problem,
                compile=order.compile,
                deadline_s=order.deadline_s,
                submitted_at=datetime.now(UTC).isoformat(),
            )


def _show(order: Order, problem: Problem, audit: Audit, note: str = "") -> None:
    if not order.as_json:
        emit_text(line(problem, audit) + note)


def _conclude(order: Order, rows: list[tuple[Problem, Audit]]) -> None:
    if order.as_json:
        emit_json([document(problem, audit) for problem, audit in rows])
    if order.target is not None:
        table = markdown([(problem.name, audit) for problem, audit in rows])
        try:
            order.target.write_text(f"{table}\n", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{order.target} cannot be written: {error.strerror}.") from None
