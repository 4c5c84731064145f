"""What `drkq eval` does: from files to requests, through the queue, to lines and documents."""

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from drkernel_q.audit import Audit
from drkernel_q.cli import verdict
from drkernel_q.cli.findings import readable_store, stored_audits
from drkernel_q.cli.output import emit_json, emit_jsonl, emit_text, progress
from drkernel_q.errors import BadKernelFile, BadSettings
from drkernel_q.evaluation import EvaluationRequest, Protocol, Reply
from drkernel_q.kernel import Kernel, read_kernel
from drkernel_q.local import join
from drkernel_q.problem import Problem, find_problem, load_problem, parse_override
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.settings import Settings, load_settings

_PROTOCOL_OPTIONS = ("precision", "mode", "backend", "trials", "timing_budget_s")
_TICK_S = 1.0


class Order(NamedTuple):
    """What the command was asked to do."""

    settings: Settings
    requests: tuple[EvaluationRequest, ...]
    form: str | None


def prepare(problem_name: str | None, reference: Path | None, options: dict[str, Any]) -> Order:
    """Read everything that the command names, and check it.

    Raises:
        BadProblem, BadKernelFile, BadSettings: something cannot be used.
    """
    settings = load_settings(device=options["device"], kernelbench=options["kernelbench"])
    problem = load_problem(reference) if reference is not None else find_problem(problem_name or "", settings)
    if options["overrides"]:
        problem = problem.resized(dict(map(parse_override, options["overrides"])))
    chosen = {name: options[name] for name in _PROTOCOL_OPTIONS if options[name] is not None}
    try:
        protocol = Protocol(baselines=tuple(options["baseline"].split(",")), **chosen)
    except ValidationError:
        raise BadSettings(
            f"`{options['baseline']}` is no list of baselines; they are eager, compile and max-autotune."
        ) from None
    kernels = [_read(path) for path in options["files"]]
    requests = tuple(
        _request(problem, kernel, protocol, options) for kernel in kernels for _ in range(options["repeat"])
    )
    return Order(settings, requests, options["form"])


def _read(path: Path) -> Kernel:
    if str(path) != "-":
        return read_kernel(path)
    try:
        return Kernel(source=sys.stdin.read(), name="-")
    except UnicodeDecodeError:
        raise BadKernelFile("Standard input is not UTF-8 text.") from None


def _request(problem: Problem, kernel: Kernel, protocol: Protocol, options: dict[str, Any]) -> EvaluationRequest:
    return EvaluationRequest(
        id=uuid.uuid4().hex,
        problem=problem,
        kernel=kernel,
        protocol=protocol,
        deadline_s=options["deadline_s"],
        run=options["run"],
        fresh=options["fresh"] or options["repeat"] > 1,
        submitted_at=datetime.now(UTC).isoformat(),
    )


async def run(order: Order) -> int:
    """Judge, print in the wanted form, and return the exit code."""
    requests = {request.id: request for request in order.requests}
    documents: list[dict[str, Any]] = []
    codes: list[int] = []
    audits: dict[str, Mapping[str, Audit]] | None = None
    device = order.settings.device
    with (
        progress("getting ready") as tell,
        join(order.settings, [device], tell) as url,
        readable_store(order.settings) as store,
    ):
        async with EvaluationQueue(url, archive=store, recorded=order.settings.recorded) as queue:
            replies = queue.evaluate_many(order.requests, device=device)
            async for reply in with_clock(replies, len(requests), tell, "judging"):
                request = requests[reply.id]
                codes.append(verdict.exit_code(reply))
                if order.form in (None, "feedback"):
                    tell_people = verdict.line if order.form is None else verdict.told
                    emit_text(tell_people(request, reply))
                    continue
                audits = audits if audits is not None else stored_audits(order.settings, [request.problem])
                document = verdict.document(request, reply, audits.get(request.problem.hash, {}))
                if order.form == "jsonl":
                    emit_jsonl([document])
                else:
                    documents.append(document)
            await queue.written()  # or the next command might not find them
    if order.form == "json":
        emit_json(documents[0] if len(documents) == 1 else documents)
    return max(codes)


async def with_clock(
    replies: AsyncGenerator[Reply], total: int, tell: Callable[[str], None], doing: str
) -> AsyncGenerator[Reply]:
    """Pass replies on, and say on a terminal how many are there and how long it has been."""
    start = time.monotonic()
    done = 0

    async def tick() -> None:
        while True:
            tell(f"{doing}: {done} of {total} done, {time.monotonic() - start:.0f} s")
            await asyncio.sleep(_TICK_S)

    ticker = asyncio.create_task(tick()) if sys.stderr.isatty() else None
    try:
        async for reply in replies:
            done += 1
            yield reply
    finally:
        if ticker is not None:
            ticker.cancel()
            with suppress(asyncio.CancelledError):
                await ticker
