"""A vLLM server that drkq starts, watches, and starts again when it dies."""

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import openai

from drkernel_q.errors import NoSampler
from drkernel_q.local.process import tether
from policy.sampler import remote

#: `vllm serve` is missing from some builds; its module is in all of them.
COMMAND = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
#: Log-probabilities of what was drawn, after temperature; and no sampling parameters out of the model's own files,
#: which would cut the distribution without a word.
FLAGS = ("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs")
#: Routes that load weights exist only with this; they have no key, so the server listens on this machine alone.
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
#: Times that a server may die before it is given up.
MAX_DEATHS = 3
START_S = 600.0
#: What vLLM says as it ends because another process has let go of memory while it measured how much is free.
DISTURBED = "Error in memory profiling"
_POLL_S = 0.2
_STOP_S = 20.0
_LOG_LINES, _LINE_CHARS = 3, 200

log = logging.getLogger(__name__)


class VllmServer:
    """One server as a child process; it ends with this one."""

    def __init__(
        self,
        model: str,
        *,
        options: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Name a model, and what else `vllm` is to be told and has in its environment; nothing is started yet."""
        self.model = model
        """What it loads when it starts."""
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.deaths = 0
        address = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", model)
        self._environment = {**ENVIRONMENT, **environment}
        self._command, self._flags = list(command), [*address, *FLAGS, *options]
        self._log: Path | None = None
        self._begun_at = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()

    async def ensure(self, timeout_s: float = START_S) -> bool:
        """Start it if it does not run, and wait until it answers; return whether it was started.

        Raises:
            NoSampler: it ends as soon as it starts, has died too often, or does not answer in time.
        """
        async with self._starting:
            if self._process is not None and self._process.poll() is None:
                return False
            if self._process is not None:
                self._clear(self._process)
                self.deaths += 1
            if self.deaths > MAX_DEATHS:
                raise NoSampler(f"The vLLM server died {self.deaths} times; {self._last_words()}")
            await self._start_undisturbed(timeout_s)
            return True

    async def restart(self, model: str, timeout_s: float = START_S) -> None:
        """Start it anew with another model, under the name of the first one.

        Raises:
            NoSampler: as `ensure`.
        """
        async with self._starting:
            await asyncio.to_thread(self.stop)
            self.model = model
            await self._start_undisturbed(timeout_s)

    def stop(self) -> None:
        """End it, politely at first, and all that it started; its log stays if it had ended by itself."""
        process = self._process
        if process is None:
            return
        is_well = process.poll() is None
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        self._clear(process)
        if is_well and self._log is not None:
            shutil.rmtree(self._log.parent, ignore_errors=True)
            self._log = None

    def _clear(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill what is left: engines that outlive their server keep the device's memory."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    async def _start_undisturbed(self, timeout_s: float) -> None:
        """Start it and wait until it answers; again, if others on its device were in its way."""
        while True:
            self._start()
            try:
                return await self._healthy(timeout_s)
            except NoSampler as error:
                if self.deaths >= MAX_DEATHS or DISTURBED not in self._said():
                    raise
                self.deaths += 1
                log.warning("%s It is started again.", error)

    def _start(self) -> None:
        if self._log is None:
            self._log = Path(tempfile.mkdtemp(prefix="drkq-vllm-")) / "vllm.log"
        with self._log.open("ab") as file:
            self._begun_at = file.tell()
            try:
                self._process = subprocess.Popen(
                    [*self._command, "--model", self.model, *self._flags],
                    env=os.environ | self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    preexec_fn=tether(signal.SIGTERM),  # noqa: PLW1509 - one prctl, no locks
                )
            except OSError as error:
                raise NoSampler(f"The vLLM server cannot be started: {error.strerror}.") from error

    async def _healthy(self, timeout_s: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        async with remote.connect(self.url) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise NoSampler(f"The vLLM server ended with code {self._process.returncode}; {self._last_words()}")
                try:
                    await client.get("/health", cast_to=str)
                except openai.OpenAIError:
                    await asyncio.sleep(_POLL_S)
                else:
                    return
        raise NoSampler(f"The vLLM server did not answer within {timeout_s:g} s; {self._last_words()}")

    def _said(self) -> str:
        """What it has written since it was started last."""
        if self._log is None or not self._log.exists():
            return ""
        return self._log.read_bytes()[self._begun_at :].decode(errors="replace")

    def _last_words(self) -> str:
        text = self._said()
        lines = [line.strip()[:_LINE_CHARS] for line in text.splitlines() if line.strip()]
        return f"its log ({self._log}) ends: {' | '.join(lines[-_LOG_LINES:]) or 'nothing'}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
