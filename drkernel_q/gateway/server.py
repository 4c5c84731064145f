"""The server: uvicorn around the application, ending as it should."""

import asyncio
import logging
import resource
import signal
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from drkernel_q.errors import BadSettings
from drkernel_q.gateway.context import Gateway
from drkernel_q.gateway.limits import Limits

#: How long open requests may take when the server ends; those that only wait are sent away at once.
END_S = 10
#: How long an idle connection stays open: longer than whoever is refused is told to wait.
KEEP_ALIVE_S = 75
#: Files that are open beside connections: the store, the broker, the log.
FILES_BESIDE = 256


class Server(uvicorn.Server):
    """Tells the application of the end before it waits for the connections, which might wait for something."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End on a signal, at once on a second Ctrl-C; uvicorn's own way would end the process by the signal."""
        self._tell()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def end(self) -> None:
        """End, asked from another thread."""
        self._tell()
        self.should_exit = True

    def _tell(self) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        gateway: Gateway | None = getattr(app.state, "gateway", None)
        if gateway is not None:
            gateway.close()


def configuration(app: FastAPI, host: str, port: int, limits: Limits) -> uvicorn.Config:
    """Configure uvicorn: it logs nothing by itself, and bounds what is open."""
    logging.getLogger("uvicorn.access").disabled = True  # the door says it better, and without query strings
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        # The door refuses in words what is beyond the limit; this is for what does not even ask for something.
        limit_concurrency=2 * limits.connections + FILES_BESIDE,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=END_S,
        lifespan="on",
    )


def serve(app: FastAPI, host: str, port: int, limits: Limits, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `started` is told the URL.

    Raises:
        BadSettings: the port is taken, or may not be used.
    """
    _raise_file_limit(2 * limits.connections + FILES_BESIDE)
    server = Server(configuration(app, host, port, limits))

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.02)
        if server.started:
            number = server.servers[0].sockets[0].getsockname()[1]
            started(f"http://{f'[{host}]' if ':' in host else host}:{number}")
        await serving

    try:
        asyncio.run(run())
    except SystemExit as error:
        raise BadSettings(f"Nothing can listen on {host}, port {port}: it is taken, or not allowed.") from error


def _raise_file_limit(wanted: int) -> None:
    """Allow as many open files as there may be connections, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
