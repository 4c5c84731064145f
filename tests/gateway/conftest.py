"""A real gateway in front of a real broker and an echo worker, asked over real HTTP."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from drkernel_q.gateway.access import Tokens
from drkernel_q.gateway.app import create_app
from drkernel_q.gateway.limits import Limits
from drkernel_q.gateway.server import Server, configuration
from drkernel_q.settings import Settings
from drkernel_q.store import Store
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, broker, service, start_worker

__all__ = ["broker", "service", "start_worker"]

#: Two clients, one that may bring problems of its own, and one that may only look.
TOKENS = """
ann  ann-has-a-long-token   read,submit
bob  bob-has-a-long-token   read,submit
own  own-has-a-long-token   read,submit,problems
eve  eve-has-a-long-token   read
"""
LIMITS = Limits(rate_per_s=10_000, burst=10_000)


class Served:
    """A gateway that is running, and clients for it."""

    def __init__(self, app: FastAPI, url: str) -> None:
        self.app = app
        self.url = url

    def client(self, name: str = "ann", **options: Any) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {name}-has-a-long-token"} if name else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30, **options)


@contextmanager
def serving(app: FastAPI, limits: Limits = LIMITS) -> Iterator[Served]:
    """Run an application on a free port for the length of the block."""
    server = Server(configuration(app, "127.0.0.1", 0, limits))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + PATIENT_S
        while not server.started:
            assert thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < end
            time.sleep(0.01)
        yield Served(app, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
    finally:
        server.end()
        thread.join(PATIENT_S)
        assert not thread.is_alive()


@contextmanager
def gateway_on(
    broker: Broker, folder: Path, *, limits: Limits = LIMITS, store: Store | None = None, tokens: str = TOKENS
) -> Iterator[Served]:
    """Run a gateway with tokens of its own in front of a broker; one of the same folder goes on with what it had."""
    file = folder / "tokens"
    file.write_text(tokens)
    settings = Settings(gateway_name=folder.name)
    with serving(create_app(settings, broker.url, store, tokens=Tokens.read(file), limits=limits), limits) as served:
        yield served


@pytest.fixture(scope="module")
def gateway(service: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway for all tests of a module that leave it as it was."""
    with gateway_on(service, tmp_path_factory.mktemp("gateway")) as served:
        yield served
