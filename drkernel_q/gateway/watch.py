"""Routes of whoever watches: devices, the queue, runs and trajectories, errors, metrics."""

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response, status
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from drkernel_q.difference import before, kernel_diff
from drkernel_q.feedback import feedback
from drkernel_q.gateway.context import Gateway, Reader, here
from drkernel_q.queue.registry import WorkerCard
from drkernel_q.reward import turn_reward
from drkernel_q.trajectory import Message, Trajectory, Turn
from drkernel_q.value import Value

router = APIRouter(tags=["watch"])

Limit = Annotated[int, Query(ge=1, le=200, description="Rows at most.")]
Name = Annotated[str, Query(max_length=300)]


class Rows(Value):
    """Rows of a named query (`drkq db query`), with its columns."""

    rows: tuple[dict[str, Any], ...]


class Device(Value):
    """A device and what it is at."""

    card: WorkerCard
    """What its worker says about itself."""
    problem: str | None = None
    """Problem of the evaluation that it is at, where this gateway took the order."""
    client: str | None = None
    """Client whose order it is."""


class Overview(Value):
    """What happens now."""

    devices: tuple[Device, ...]
    queues: dict[str, int]
    """Requests that wait in the broker, by queue."""
    waiting: dict[str, int]
    """Orders that wait in the gateway, by priority."""
    clients: dict[str, int]
    """Orders without a reply, by client."""
    in_flight: int
    """Orders of this gateway that are in the broker."""
    finished: int
    """Orders that got their replies since the gateway started."""


class Progress(Value):
    """How a training run goes."""

    run: str
    p: float
    """Speedup that `fast_p` asks for."""
    steps: tuple[dict[str, Any], ...]
    """`step`, `turns`, mean `reward`, shares `honest` and `fast_p`; by step."""
    validations: tuple[dict[str, Any], ...]
    """`step`, `trajectories`, `fast_p`: share of the validation's trajectories that reach p at any turn."""


class Errors(Value):
    """What is not as it should be."""

    quarantined: tuple[WorkerCard, ...]
    failures: tuple[dict[str, Any], ...]
    """Attempts that failed for reasons that are not the kernel's, newest first."""


class TurnView(Value):
    """One turn as it is looked at."""

    number: int
    policy_version: int | None
    finish_reason: str | None
    reward: float | None
    """By the default formula; None where the evaluation failed for reasons of the infrastructure."""
    outcome: str | None
    integrity: str | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    profile_ratio: float | None
    feedback: str | None
    """What its author was told."""
    evidence: tuple[str, ...]
    """Codes behind the integrity verdict."""
    kernel: str | None
    diff: str | None
    """Unified diff to the last kernel before; None when there is no kernel."""
    prompt: tuple[Message, ...] | None
    completion: str | None


class TrajectoryView(Value):
    """One trajectory, turn by turn."""

    run: str
    problem: str
    number: int
    turns: tuple[TurnView, ...]


@router.get("/v1/overview", response_model=Overview)
async def overview(_: Reader, request: Request) -> Overview:
    """Say what happens now: devices and what each is at, and what waits where."""
    counter = here(request).counter
    cards = await counter.cards()
    queues = sorted({queue for card in cards for queue in card.queues if queue.startswith("eval.")})
    return Overview(
        devices=tuple(_device(here(request), card) for card in cards),
        queues={queue: await counter.depth(queue) for queue in queues},
        waiting=counter.line.waiting(),
        clients=dict(counter.open.most_common(50)),
        in_flight=counter.in_flight,
        finished=counter.finished,
    )


@router.get("/v1/errors", response_model=Errors)
async def errors(_: Reader, request: Request, limit: Limit = 20) -> Errors:
    """List devices that are out of service, and what failed for reasons that are not the kernel's."""
    gateway = here(request)
    cards = await gateway.counter.cards()
    return Errors(
        quarantined=tuple(card for card in cards if card.state == "quarantined"),
        failures=tuple(await gateway.reading.rows("infrastructure-failures", limit=limit)),
    )


@router.get("/v1/runs", response_model=Rows)
async def runs(
    _: Reader, request: Request, kind: Annotated[str | None, Query(max_length=50)] = None, limit: Limit = 20
) -> Rows:
    """List the latest runs, newest first."""
    return Rows(rows=tuple(await here(request).reading.rows("latest-runs", kind=kind, limit=limit)))


@router.get("/v1/progress", response_model=Progress)
async def progress(_: Reader, request: Request, run: Name, p: Annotated[float, Query(ge=0, le=1000)] = 1.2) -> Progress:
    """Say how a training run goes: reward and Fast@p by step, and its validations."""
    reading = here(request).reading
    validations = [
        {"step": int(row["validation"].rpartition("-")[2])} | {key: row[key] for key in ("trajectories", "fast_p")}
        for row in await reading.rows("validations", run=run, p=p)
        if row["validation"].rpartition("-")[2].isdecimal()
    ]
    return Progress(
        run=run, p=p, steps=tuple(await reading.rows("progress", run=run, p=p)), validations=tuple(validations)
    )


@router.get("/v1/trajectories", response_model=Rows)
async def trajectories(
    _: Reader, request: Request, run: Annotated[str | None, Query(max_length=300)] = None, limit: Limit = 20
) -> Rows:
    """List the trajectories that were begun last, newest first."""
    return Rows(rows=tuple(await here(request).reading.rows("latest-trajectories", run=run, limit=limit)))


@router.get("/v1/trajectory", response_model=TrajectoryView)
async def trajectory(
    _: Reader,
    request: Request,
    run: Name,
    problem: Name,
    number: Annotated[int, Query(ge=1, le=2**31 - 1)] = 1,
    texts: Annotated[bool, Query(description="Whether prompts and completions come along.")] = False,
) -> TrajectoryView:
    """Show one trajectory turn by turn: verdict, kernel, and the difference to the kernel before."""
    found = await here(request).reading.trajectory(run, problem, number)
    if found is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"The run has no trajectory {number} of this problem.")
    return TrajectoryView(
        run=run, problem=problem, number=number, turns=tuple(_turn(found, each, texts=texts) for each in found.turns)
    )


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}, "description": "Metrics."}}
)
async def metrics(_: Reader, request: Request) -> Response:
    """Write the metrics as Prometheus reads them; give its job the token as `authorization.credentials`."""
    gateway = here(request)
    return Response(await gateway.metrics.text(gateway.counter, gateway.store), media_type=CONTENT_TYPE_LATEST)


def _device(gateway: Gateway, card: WorkerCard) -> Device:
    submission = gateway.counter.get(card.request_id)
    if submission is None:
        return Device(card=card)
    return Device(card=card, problem=submission.problem, client=submission.client)


def _turn(trajectory: Trajectory, turn: Turn, *, texts: bool) -> TurnView:
    facts = turn.evaluation
    timing = facts.timing if facts else None
    return TurnView(
        number=turn.number,
        policy_version=turn.policy_version,
        finish_reason=turn.finish_reason,
        reward=turn_reward(turn),
        outcome=facts.outcome.value if facts else None,
        integrity=facts.integrity.value if facts else None,
        speedup=timing.speedup if timing else None,
        speedup_low=timing.speedup_low if timing else None,
        speedup_high=timing.speedup_high if timing else None,
        profile_ratio=facts.profile_ratio if facts else None,
        feedback=feedback(facts) if facts else None,
        evidence=tuple(sorted({each.code for each in facts.evidence})) if facts else (),
        kernel=turn.kernel.source if turn.kernel else None,
        diff="\n".join(kernel_diff(before(trajectory, turn), turn)) if turn.kernel else None,
        prompt=turn.prompt if texts else None,
        completion=turn.completion if texts or not turn.kernel else None,
    )
