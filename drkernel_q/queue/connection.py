"""Connections to the broker: one URL form for Celery and for redis-py, with every time-out said aloud.

redis-py 8 defaults to 5 s time-outs that are retried in silence, which turns a blocking read of 8 s into a
minute and can lose an element; so nothing here relies on a default.
"""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from redis import Redis
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from drkernel_q.errors import BadSettings, NoBroker
from drkernel_q.settings import Settings

#: Longest time for one command's answer; anything the broker does takes milliseconds.
SOCKET_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
#: What a command may fail with and be tried again: the broker restarts, or is full until somebody reads.
TRANSIENT = (RedisConnectionError, RedisTimeoutError, OutOfMemoryError)

SOCKET_SCHEME = "redis+socket"


def broker_url(broker: Settings | str) -> str:
    """Return the broker's URL; it holds the password, if there is one.

    Raises:
        NoBroker: the settings name none.
    """
    if isinstance(broker, str):
        return _with_check(broker)
    if broker.broker_url is None:
        raise NoBroker("No broker is named; set DRKQ_BROKER_URL.")
    return _with_check(broker.broker_url.get_secret_value())


def _with_check(url: str) -> str:
    """Have the certificate of a broker checked unless the URL says otherwise; kombu alone would take any."""
    parts = urlsplit(url)
    if parts.scheme != "rediss" or "ssl_cert_reqs" in dict(parse_qsl(parts.query)):
        return url
    query = "&".join(filter(None, (parts.query, "ssl_cert_reqs=required")))
    return urlunsplit(parts._replace(query=query))


def connect(broker: Settings | str, *, retries: int = 20) -> Redis:
    """Connect for one thread; a command outlives a broker that is away for about `retries` seconds."""
    retry = Retry(ExponentialWithJitterBackoff(cap=2.0, base=0.1), retries, supported_errors=TRANSIENT)
    url, options = _target(broker_url(broker))
    options |= {"retry": retry, "health_check_interval": 15}
    return Redis.from_url(url, **options) if url else Redis(**options)


def connect_async(broker: Settings | str, *, socket_timeout_s: float = SOCKET_TIMEOUT_S) -> aioredis.Redis:
    """Connect for one event loop; nothing is retried here, since a retried write may be written twice."""
    url, options = _target(broker_url(broker))
    options |= {"retry": AsyncRetry(NoBackoff(), 0), "socket_timeout": socket_timeout_s}
    return aioredis.Redis.from_url(url, **options) if url else aioredis.Redis(**options)


def _target(url: str) -> tuple[str | None, dict[str, Any]]:
    """Split a broker URL into a URL that redis-py reads, or none, and the options that go with it."""
    common: dict[str, Any] = {
        "decode_responses": True,
        "protocol": 2,
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
    }
    parts = urlsplit(url)
    if parts.scheme in {"redis", "rediss"}:
        return url, common | {"socket_keepalive": True}
    if parts.scheme != SOCKET_SCHEME:
        raise BadSettings(
            f"The broker URL starts with `{parts.scheme}://`; drkq reads redis://, rediss:// and {SOCKET_SCHEME}://."
        )
    return None, common | {
        "unix_socket_path": unquote(parts.path),
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "db": int(dict(parse_qsl(parts.query)).get("virtual_host", "0").strip("/") or 0),
    }
