"""The door: what every request passes before anything of it is read: id, host, token, rate and size.

It is plain ASGI, so that a body is refused before it is in memory, and streams pass through untouched.
"""

import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drkernel_q.gateway.access import LOCAL, Client, Tokens
from drkernel_q.gateway.limits import Limits
from drkernel_q.gateway.rate import Rate

log = logging.getLogger(__name__)

#: Paths that show nothing about anybody: signs of life, the page without its data, the description of the interface.
PUBLIC = re.compile(r"/|/livez|/readyz|/openapi\.json|/page/.*")
BATCHES = re.compile(r".*/(batches|batch)")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
#: When to come again where too much is open, seconds.
RETRY_AFTER_S = 5
#: Requests with a wrong token, of one address.
_WRONG_PER_S, _WRONG_BURST = 1.0, 20


class _Refused(HTTPException):
    """Whoever asks is sent away; raised also while a body is read, and then the application answers with it."""

    def __init__(self, code: HTTPStatus, detail: str, **headers: str) -> None:
        super().__init__(code, detail, {name.replace("_", "-"): value for name, value in headers.items()})


class Door:
    """Middleware that stands before everything."""

    def __init__(
        self, app: ASGIApp, tokens: Tokens | None, limits: Limits, observe: Callable[[Scope, int, float], None]
    ) -> None:
        """Guard `app`; without tokens it serves this machine alone. `observe` hears of each request at its end."""
        self._app = app
        self._tokens = tokens
        self._limits = limits
        self._observe = observe
        self._rate = Rate(limits.rate_per_s, limits.burst)
        self._wrong = Rate(_WRONG_PER_S, _WRONG_BURST)
        self._reading_bytes = 0
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        visit = _Visit(scope, send, request_id)
        self._open += 1
        try:
            client = self._client(scope, headers)
            scope["state"] |= {"client": client, "request_id": request_id}
            with _Body(self, scope, headers, receive) as body:
                await self._app(scope, body.receive, visit.send)
        except _Refused as refusal:
            await visit.refuse(refusal)
        finally:
            self._open -= 1
            self._observe(scope, visit.code, visit.seconds)
            visit.log()

    def _client(self, scope: Scope, headers: Headers) -> Client | None:
        """Find out who it is, and whether it comes too often; None for what everybody may see."""
        if self._tokens is None and not _LOOPBACK.fullmatch(headers.get("host", "")):
            # A name of somebody else's that leads to this machine: a page in a browser must not get in so.
            raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, "Without tokens this gateway answers to localhost alone.")
        if PUBLIC.fullmatch(scope["path"]):
            return None
        if self._open > self._limits.connections:
            raise _Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The gateway is full: {self._open} requests are open.",
                retry_after=_whole(RETRY_AFTER_S),
            )
        client = self._known(scope, headers)
        if (wait_s := self._rate.wait_s(client.name)) > 0:
            raise _Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{client.name} sends more than {self._limits.rate_per_s:g} requests a second.",
                retry_after=_whole(wait_s),
            )
        return client

    def _known(self, scope: Scope, headers: Headers) -> Client:
        if self._tokens is None:
            return LOCAL
        found = self._tokens.client(headers.get("authorization", ""))
        if found is not None:
            return found
        address = (scope.get("client") or ("?",))[0]
        if (wait_s := self._wrong.wait_s(address)) > 0:
            raise _Refused(
                HTTPStatus.TOO_MANY_REQUESTS, "Too many requests without a valid token.", retry_after=_whole(wait_s)
            )
        raise _Refused(
            HTTPStatus.UNAUTHORIZED,
            "Send a valid token: `Authorization: Bearer TOKEN`.",
            www_authenticate='Bearer realm="drkq"',
        )

    def most_bytes(self, path: str) -> int:
        """Largest body on a path."""
        return self._limits.batch_bytes if BATCHES.fullmatch(path) else self._limits.body_bytes

    def reserve(self, size: int) -> None:
        """Make room for a body that is about to be read; the one who reserved gives it back by a negative size."""
        if size > 0 and self._reading_bytes + size > self._limits.reading_bytes:
            raise _Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many bodies are being read at once.", retry_after=_whole(1)
            )
        self._reading_bytes += size


class _Body:
    """The body of one request: refused by its announced size, else counted while it is read."""

    def __init__(self, door: Door, scope: Scope, headers: Headers, receive: Receive) -> None:
        self._door = door
        self._receive = receive
        self._most = door.most_bytes(scope["path"])
        self._read = 0
        self._reserved = 0
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._most:
            raise self._too_large()

    def __enter__(self) -> "_Body":
        return self

    def __exit__(self, *_: object) -> None:
        self._door.reserve(-self._reserved)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._read += size
            if self._read > self._most:
                raise self._too_large()
            self._door.reserve(size)
            self._reserved += size
        return message

    def _too_large(self) -> _Refused:
        return _Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body has more than {self._most} bytes.", connection="close"
        )


class _Visit:
    """One request and its answer, for the log."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._start = time.monotonic()
        self._started = False
        self.code = 499
        """Until something else is said, whoever asked went away."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            self.code = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._request_id
            headers.setdefault("Cache-Control", "no-store")
            headers["X-Content-Type-Options"] = "nosniff"
        await self._send(message)

    async def refuse(self, refusal: _Refused) -> None:
        """Send the reason, unless an answer has begun."""
        if self._started:
            return
        body = json.dumps({"detail": refusal.detail}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **(refusal.headers or {})}
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refusal.status_code, "headers": raw})
        await self._send({"type": "http.response.body", "body": body})

    def log(self) -> None:
        client = self._scope["state"].get("client") if "state" in self._scope else None
        log.info(
            "%s %s %d",
            self._scope["method"],
            self._scope["path"],
            self.code,
            extra={
                "action": "request",
                "http_request": self._request_id,
                "client": client.name if client else None,
                "code": self.code,
                "duration_s": round(self.seconds, 4),
            },
        )


def _whole(seconds: float) -> str:
    return str(max(1, round(seconds)))
