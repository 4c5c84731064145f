"""The application: routes behind the door, and the queue for as long as it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, status
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

import drkernel_q
from drkernel_q.errors import BadInput, DrkqError, NoDevice, TimedOut, Unavailable
from drkernel_q.gateway import evaluations, gym, health, page, watch
from drkernel_q.gateway.access import Tokens
from drkernel_q.gateway.context import Gateway
from drkernel_q.gateway.counter import RETRY_AFTER_S, Counter
from drkernel_q.gateway.door import Door
from drkernel_q.gateway.limits import Limits
from drkernel_q.gateway.metrics import Metrics, replied
from drkernel_q.gateway.promises import Promises
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.connection import connect_async
from drkernel_q.settings import Settings
from drkernel_q.store import Store
from drkernel_q.value import Value

_ABOUT = """Have Triton kernels judged: correct? honest? how fast? how much of the device time is their own?

A kernel that fails is data: the reply says how. A reply without an evaluation says why there is none, and nothing about
the kernel. Refusals: 401 and 403 (token), 409 (id is taken), 413 (too large), 422 (cannot be used), 429 (this client
comes too often, or has too many), 503 (the gateway is full, or something behind it is away); 429 and 503 say when to
come again."""


class Refusal(Value):
    """Why a request was refused."""

    detail: str


#: The refusals that any route may answer with, beside what the door does.
_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"description": text, "model": Refusal}
    for code, text in {
        400: "The body cannot be read.",
        401: "No valid token.",
        403: "The token has no right to this.",
        404: "Not known here.",
        409: "The id is that of another evaluation.",
        413: "Too large.",
        421: "Without tokens, only localhost is served.",
        422: "It cannot be used; `detail` says why.",
        429: "Too often, or too many at once; come again after `Retry-After` seconds.",
        503: "The gateway is full, or what it needs is away; come again after `Retry-After` seconds.",
    }.items()
}


def create_app(
    settings: Settings,
    broker: str,
    store: Store | None,
    *,
    tokens: Tokens | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> FastAPI:
    """Make the application: it enters the queue at the broker's URL when it starts, and leaves it when it ends."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            connect_async(broker) as redis,
            EvaluationQueue(broker, archive=store, recorded=settings.recorded, returns=True) as queue,
        ):
            promises = Promises(redis, settings.gateway_name)
            counter = Counter(queue, promises, limits, partial(replied, metrics))
            app.state.gateway = Gateway(settings, limits, counter, store, metrics)
            async with promises.running(), counter.running():
                yield

    app = FastAPI(
        title="drkq",
        summary="The gateway of drkq.",
        description=_ABOUT,
        version=drkernel_q.__version__,
        lifespan=lifespan,
        # The pages of FastAPI load their scripts from elsewhere; this page needs no network.
        docs_url=None,
        redoc_url=None,
        responses=_REFUSALS,
    )
    app.add_middleware(Door, tokens=tokens, limits=limits, observe=metrics.requested)
    app.add_exception_handler(DrkqError, _tell)
    app.add_exception_handler(RequestValidationError, _tell_invalid)
    for router in (health.router, evaluations.router, gym.router, watch.router, page.router):
        app.include_router(router)
    app.mount("/page", page.files)
    return app


async def _tell(_: Request, error: Exception) -> JSONResponse:
    """Answer with an error that a person can act on."""
    match error:
        case BadInput() | NoDevice():
            return JSONResponse({"detail": str(error)}, status.HTTP_422_UNPROCESSABLE_CONTENT)
        case Unavailable() | TimedOut():
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            return JSONResponse({"detail": str(error)}, status.HTTP_503_SERVICE_UNAVAILABLE, headers)
        case _:
            return JSONResponse({"detail": str(error)}, status.HTTP_500_INTERNAL_SERVER_ERROR)


async def _tell_invalid(_: Request, error: Exception) -> JSONResponse:
    """Say what is wrong with a request, part by part; what was sent is not repeated, it may be long or secret."""
    assert isinstance(error, RequestValidationError)
    sentences = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:10]]
    return JSONResponse({"detail": jsonable_encoder("; ".join(sentences))}, status.HTTP_422_UNPROCESSABLE_CONTENT)
