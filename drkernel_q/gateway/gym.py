"""Routes for clients of KernelGYM, unchanged: give them `http://x:TOKEN@HOST:PORT/kernelgym` as the server's URL."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.exceptions import HTTPException

from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.gateway.access import Client
from drkernel_q.gateway.context import Gateway, Owner, Reader, Submitter, here, not_found
from drkernel_q.gateway.counter import refused
from drkernel_q.gateway.kernelgym import GymResult, GymStatus, GymTask, TaskId, result_of, status_of
from drkernel_q.gateway.order import brought
from drkernel_q.gateway.submission import Submission, SubmissionView
from drkernel_q.kernel import Kernel
from drkernel_q.queue.routing import AUTO
from drkernel_q.value import Value

Id = Annotated[TaskId, Path(description="The client's name for the evaluation.")]


class GymRefusal(Value):
    """KernelGYM's answer to what cannot be used."""

    error: str = "RequestValidationError"
    message: str
    error_code: str = "VALIDATION_ERROR"
    timestamp: str


class _Route(APIRoute):
    """Answers what cannot be used with 400, as KernelGYM does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_as_kernelgym(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:10])
            except HTTPException as error:
                if error.status_code != status.HTTP_400_BAD_REQUEST:
                    raise
                told = error.detail
            body = GymRefusal(message=told, timestamp=datetime.now(UTC).isoformat())
            return JSONResponse(body.model_dump(), status.HTTP_400_BAD_REQUEST)

        return handle_as_kernelgym


router = APIRouter(prefix="/kernelgym", tags=["kernelgym"], route_class=_Route, responses={400: {"model": GymRefusal}})


class GymBatch(Value):
    """KernelGYM's request for several evaluations."""

    batch_id: TaskId
    tasks: Annotated[tuple[GymTask, ...], Field(min_length=1, max_length=100)]


class GymBatchResult(Value):
    """KernelGYM's answer about several evaluations."""

    batch_id: str
    total_tasks: int
    completed_tasks: int
    failed_tasks: int
    results: tuple[GymResult, ...]
    batch_status: str


class GymHealth(Value):
    """KernelGYM's answer about the whole service."""

    status: str
    timestamp: str
    gpu_status: dict[str, dict[str, Any]]
    queue_status: dict[str, int]
    memory_usage: dict[str, int]
    active_tasks: int
    total_processed: int
    uptime: float


@router.post("/evaluate", response_model=GymResult)
async def evaluate(task: GymTask, client: Submitter, request: Request) -> GymResult:
    """Judge a kernel, and answer when it is done; after a few minutes with a status that asks to poll.

    An evaluation that failed for reasons of the infrastructure is answered with 503, on which KernelGYM's client sends
    it again: it must not become a reward.
    """
    gateway = here(request)
    (submission,) = await _accept(gateway, client, [task])
    await gateway.unless_closing(submission.wait(gateway.limits.kernelgym_wait_s))
    if _is_unfounded(submission):
        gateway.beginnings.begin_anew(client, task.task_id)
        raise refused(status.HTTP_503_SERVICE_UNAVAILABLE, _reason(submission))
    view = submission.view(await gateway.counter.known_cards())
    return result_of(task.task_id, view, verbose=task.verbose_errors is not False)


@router.post("/evaluate/batch", response_model=GymBatchResult)
async def evaluate_batch(batch: GymBatch, client: Submitter, request: Request) -> GymBatchResult:
    """Judge several kernels, and answer when all are done, or after a few minutes."""
    gateway = here(request)
    submissions = await _accept(gateway, client, batch.tasks)
    await gateway.unless_closing(_all_done(submissions, gateway.limits.kernelgym_wait_s))
    cards = await gateway.counter.known_cards()
    results = tuple(
        result_of(task.task_id, submission.view(cards))
        for task, submission in zip(batch.tasks, submissions, strict=True)
    )
    completed = sum(result.status == "completed" for result in results)
    waiting = sum(result.status in {"pending", "processing"} for result in results)
    return GymBatchResult(
        batch_id=batch.batch_id,
        total_tasks=len(results),
        completed_tasks=completed,
        failed_tasks=len(results) - completed - waiting,
        results=results,
        batch_status="processing" if waiting else "completed",
    )


@router.get("/status/{task_id}", response_model=GymStatus)
async def find_status(task_id: Id, client: Owner, request: Request) -> GymStatus:
    """Say how far an evaluation is."""
    view = await _find(here(request), client, task_id)
    told = view.reply.failure.message if view.reply is not None and view.reply.failure is not None else None
    return GymStatus(task_id=task_id, status=status_of(view), assigned_device=view.device, error_message=told)


@router.get("/results/{task_id}", response_model=GymResult)
async def find_result(task_id: Id, client: Owner, request: Request) -> GymResult:
    """Say what came of an evaluation; 404 until it is done."""
    view = await _find(here(request), client, task_id)
    if view.reply is None:
        raise not_found(task_id)
    return result_of(task_id, view)


@router.delete("/tasks/{task_id}")
async def cancel(task_id: Id, client: Submitter, request: Request) -> dict[str, str]:
    """Give an evaluation up."""
    gateway = here(request)
    submission = gateway.counter.find(client, gateway.beginnings.id(client, task_id))
    if submission is None or submission.done:
        raise not_found(task_id)
    gateway.counter.cancel(submission)
    return {"message": f"Task {task_id} cancelled successfully"}


@router.get("/health", response_model=GymHealth)
async def health(_: Reader, request: Request) -> GymHealth:
    """Say how the service is."""
    gateway = here(request)
    counter = gateway.counter
    cards = await counter.cards()
    waiting = len(counter.line)
    return GymHealth(
        status="healthy" if any(card.accepts for card in cards) else "unhealthy",
        timestamp=datetime.now(UTC).isoformat(),
        gpu_status={f"{card.device} of {card.host}": {"state": card.state.value} for card in cards},
        queue_status={"pending": waiting, "processing": counter.in_flight, "completed": counter.finished},
        memory_usage={"waiting_bytes": counter.waiting_bytes, "kept_bytes": counter.kept_bytes},
        active_tasks=counter.open.total(),
        total_processed=counter.finished,
        uptime=time.monotonic() - gateway.started_at,
    )


async def _accept(gateway: Gateway, client: Client, tasks: Sequence[GymTask]) -> list[Submission]:
    for task in tasks:
        known = gateway.counter.find(client, gateway.beginnings.id(client, task.task_id))
        if known is not None and known.done and (task.force_refresh or _is_unfounded(known)):
            gateway.beginnings.begin_anew(client, task.task_id)
    requests = await asyncio.to_thread(lambda: [_request(gateway, client, task) for task in tasks])
    return await gateway.counter.accept(client, requests, AUTO)


def _request(gateway: Gateway, client: Client, task: GymTask) -> EvaluationRequest:
    return EvaluationRequest(
        id=gateway.beginnings.id(client, task.task_id),
        problem=brought(task.reference_code, task.entry_point, task.problem_name, client),
        kernel=Kernel(source=task.kernel_source, name=task.task_id),
        protocol=task.protocol,
        deadline_s=task.timeout,
        priority=task.urgency,
        run=f"{client.name}/kernelgym",
        fresh=task.force_refresh,
        submitted_at=datetime.now(UTC).isoformat(),
    )


async def _find(gateway: Gateway, client: Client, task_id: str) -> SubmissionView:
    request_id = gateway.beginnings.id(client, task_id)
    submission = gateway.counter.find(client, request_id)
    if submission is None:
        return await gateway.stored(client, request_id)
    return submission.view(await gateway.counter.known_cards())


async def _all_done(submissions: Sequence[Submission], timeout_s: float) -> bool:
    """Wait until all are done; False when they were not in time."""
    end = time.monotonic() + timeout_s
    for submission in submissions:
        if not await submission.wait(max(0.0, end - time.monotonic())):
            return False
    return True


def _is_unfounded(submission: Submission) -> bool:
    """Whether it came to an end that says nothing, and may be tried again."""
    reply = submission.reply()
    return reply is not None and reply.failure is not None and reply.failure.kind == "infrastructure"


def _reason(submission: Submission) -> str:
    reply = submission.reply()
    assert reply is not None
    assert reply.failure is not None
    return f"Nothing was found out about the kernel: {reply.failure.message}"
