"""Signs of life, for whatever watches over the gateway."""

from fastapi import APIRouter, Request, Response, status

from drkernel_q.errors import DrkqError
from drkernel_q.gateway.context import here
from drkernel_q.value import Value

router = APIRouter(tags=["health"])


class Readiness(Value):
    """Whether orders can be taken now."""

    ready: bool
    reason: str | None = None
    """Why not."""


@router.get("/livez", response_model=Readiness)
async def live() -> Readiness:
    """Say that the process answers; restart it when this does not."""
    return Readiness(ready=True)


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
async def ready(request: Request, response: Response) -> Readiness:
    """Say whether the broker answers and a worker accepts; send no traffic when this is 503."""
    counter = here(request).counter
    reason = None
    try:
        if not any(card.accepts for card in await counter.cards()):
            reason = "No worker accepts requests."
    except DrkqError as error:
        reason = str(error)
    if counter.closing.is_set():
        reason = "The gateway is about to end."
    if reason is not None:
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    return Readiness(ready=reason is None, reason=reason)
