"""Routes of evaluations: submit, wait, follow, cancel; one by one or in batches."""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response, status
from fastapi.responses import StreamingResponse
from pydantic import Field

from drkernel_q.gateway.access import Client
from drkernel_q.gateway.context import Gateway, Owner, Submitter, here, not_found
from drkernel_q.gateway.order import Identity, Order
from drkernel_q.gateway.submission import Submission, SubmissionView, change
from drkernel_q.queue.routing import AUTO
from drkernel_q.value import Value

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1", tags=["evaluations"])

#: How often a stream says that it is still there, so that proxies keep it open.
HEARTBEAT_S = 15.0
Wait = Annotated[float, Query(ge=0, le=3600, description="Seconds to wait for the reply; the gateway may wait less.")]
Id = Annotated[Identity, Path(description="Id of the evaluation.")]


class Batch(Value):
    """Orders that are accepted together, or not at all."""

    evaluations: Annotated[tuple[Order, ...], Field(min_length=1)]
    device: Annotated[str, Field(max_length=100)] = AUTO
    """Device for all of them; an order that names another one is refused."""


class BatchView(Value):
    """Submissions of one batch, in its order."""

    evaluations: tuple[SubmissionView, ...]


@router.post(
    "/evaluations",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=SubmissionView,
    responses={200: {"model": SubmissionView, "description": "The reply is there."}},
)
async def submit(order: Order, client: Submitter, request: Request, wait_s: Wait = 0) -> Response:
    """Submit a kernel, and wait for the reply if asked to.

    202: accepted, and not judged yet. 200: here is the reply. An order whose id is known is not accepted twice.
    """
    gateway = here(request)
    (submission,) = await _accept(gateway, client, [order], order.device, request)
    await _wait(gateway, [submission], wait_s)
    return await _answer(gateway, submission, accepted=True)


@router.get("/evaluations", response_model=BatchView)
async def list_evaluations(
    client: Owner,
    request: Request,
    open_only: Annotated[bool, Query(alias="open", description="Only those without a reply.")] = True,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List your own evaluations that the gateway knows, oldest first, without their replies."""
    gateway = here(request)
    found = [each for each in gateway.counter.of(client) if not (open_only and each.done)][:limit]
    cards = await gateway.counter.known_cards()
    return _json(BatchView(evaluations=tuple(each.view(cards, whole=False) for each in found)))


@router.get("/evaluations/{id}", response_model=SubmissionView)
async def find(id: Id, client: Owner, request: Request, wait_s: Wait = 0) -> Response:
    """Look at an evaluation of your own, and wait for its reply if asked to.

    What the gateway has forgotten is looked up in the store.
    """
    gateway = here(request)
    submission = gateway.counter.find(client, id)
    if submission is None:
        return _json(await gateway.stored(client, id))
    await _wait(gateway, [submission], wait_s)
    return await _answer(gateway, submission)


@router.delete("/evaluations/{id}", response_model=SubmissionView)
async def cancel(id: Id, client: Submitter, request: Request) -> Response:
    """Give an evaluation up; one that is done stays as it is."""
    gateway = here(request)
    submission = _own(gateway, client, id)
    gateway.counter.cancel(submission)
    return await _answer(gateway, submission)


@router.get(
    "/evaluations/{id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "One event a state, the reply last."}},
)
async def follow(id: Id, client: Owner, request: Request) -> StreamingResponse:
    """Follow an evaluation by server-sent events: `state`, each time that it changes, until it is `done`."""
    gateway = here(request)
    return _stream(gateway, [_own(gateway, client, id)])


@router.post(
    "/batches",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=BatchView,
    responses={200: {"model": BatchView, "description": "All replies are there."}},
)
async def submit_batch(batch: Batch, client: Submitter, request: Request, wait_s: Wait = 0) -> Response:
    """Submit several kernels: all of them are accepted, or none.

    202: at least one has no reply yet. 200: here are all replies.
    """
    gateway = here(request)
    if len(batch.evaluations) > gateway.limits.batch:
        raise HTTPException(
            status.HTTP_413_CONTENT_TOO_LARGE, f"A batch has {gateway.limits.batch} evaluations at most."
        )
    submissions = await _accept(gateway, client, batch.evaluations, batch.device, request)
    await _wait(gateway, submissions, wait_s)
    return await _answer_all(gateway, submissions, accepted=True)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "One event a change of state."}},
)
async def follow_several(
    client: Owner,
    request: Request,
    id: Annotated[list[Identity], Query(min_length=1, max_length=256, description="Ids of evaluations of your own.")],
) -> StreamingResponse:
    """Follow several evaluations by server-sent events, such as those of a batch, until all are done."""
    gateway = here(request)
    return _stream(gateway, [_own(gateway, client, each) for each in dict.fromkeys(id)])


async def _accept(
    gateway: Gateway, client: Client, orders: Sequence[Order], device: str, request: Request
) -> list[Submission]:
    if any(order.device not in {AUTO, device} for order in orders):
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "A batch is for one device; name it once.")
    requests = await asyncio.to_thread(lambda: [order.request(client, gateway.settings) for order in orders])
    submissions = await gateway.counter.accept(client, requests, device)
    for submission in submissions:
        log.info(
            "%s is accepted",
            submission.id,
            extra={
                "action": "accepted",
                "http_request": request.state.request_id,
                "evaluation": submission.id,
                "client": client.name,
            },
        )
    return submissions


def _own(gateway: Gateway, client: Client, request_id: str) -> Submission:
    found = gateway.counter.find(client, request_id)
    if found is None:
        raise not_found(request_id)
    return found


async def _wait(gateway: Gateway, submissions: Sequence[Submission], wait_s: float) -> None:
    """Wait for all replies, no longer than allowed, and not when the gateway ends."""
    end = asyncio.get_running_loop().time() + min(wait_s, gateway.limits.wait_s)
    for submission in submissions:
        left_s = end - asyncio.get_running_loop().time()
        if left_s <= 0 or not await gateway.unless_closing(submission.wait(left_s)):
            return


async def _answer(gateway: Gateway, submission: Submission, *, accepted: bool = False) -> Response:
    view = submission.view(await gateway.counter.known_cards())
    response = _json(view)
    response.headers["Location"] = f"/v1/evaluations/{submission.id}"
    if accepted and not submission.done:
        response.status_code = status.HTTP_202_ACCEPTED
    return response


async def _answer_all(gateway: Gateway, submissions: Sequence[Submission], *, accepted: bool = False) -> Response:
    cards = await gateway.counter.known_cards()
    response = _json(BatchView(evaluations=tuple(each.view(cards) for each in submissions)))
    if accepted and not all(each.done for each in submissions):
        response.status_code = status.HTTP_202_ACCEPTED
    return response


def _json(value: Value) -> Response:
    return Response(value.model_dump_json(), media_type="application/json")


def _stream(gateway: Gateway, submissions: Sequence[Submission]) -> StreamingResponse:
    return StreamingResponse(
        _events(gateway, submissions), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


async def _events(gateway: Gateway, submissions: Sequence[Submission]) -> AsyncIterator[str]:
    """Tell of each state that is seen, in whatever order they come."""
    told: dict[str, str] = {}
    left = list(submissions)
    while left and not gateway.counter.closing.is_set():
        cards = await gateway.counter.known_cards()
        for submission in left:
            view = submission.view(cards)
            if told.get(view.id) != view.state:
                told[view.id] = view.state
                yield f"event: state\nid: {uuid.uuid4().hex}\ndata: {view.model_dump_json()}\n\n"
        left = [each for each in left if not each.done]
        if left and not await gateway.unless_closing(change(left, HEARTBEAT_S)):
            yield ": still here\n\n"
