"""A site: folders of its own, the embedded stack on some devices as `drkq up` has it, and who asks it for judgement."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.evaluate_throughput import variant
from benchmarks.multi_device.found import Line, line
from drkernel_q.cli.output import say
from drkernel_q.evaluation import EvaluationRequest, Protocol, Reply
from drkernel_q.kernel import Kernel
from drkernel_q.local import join
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.registry import WorkerCard
from drkernel_q.settings import load_settings
from tests.judging import builtin
from workers.device import find_device, lanes_of

ROOT = str(Path(__file__).parents[2])
DEADLINE_S = 120.0
_STOP_S = 15.0
#: Lanes come up one after the other; after this those that are there do.
LANES_S = 90.0
#: Kernels that warm workers up have numbers from here on, and so nothing in common with those that count.
_WARMING = 1_000_000


class Order(NamedTuple):
    """What every part is told."""

    devices: tuple[str, ...]
    seconds: float
    """A part begins nothing more after this."""
    kernels: int
    """Kernels of an arm of the scaling."""
    repeats: int
    """Evaluations of a kernel in each condition."""
    budget_s: float
    """Seconds that a timing stage aims to stay within."""
    emit: Callable[[Line], None]

    @property
    def kind(self) -> str:
        """`cuda` or `cpu`."""
        return self.devices[0].partition(":")[0]

    def tell(self, part: str, finding: str, facts: dict[str, Any], holds: bool | None = None, bound: str = "") -> None:
        """Write a finding down at once."""
        self.emit(line(part, finding, facts, holds, bound))


class Site:
    """Data, caches, sockets and quarantines of a part alone; device locks stay those of the machine."""

    def __init__(self, folder: Path) -> None:
        """Let this process and all that it starts use `folder`, whose path should be short, since sockets are in it."""
        folder.mkdir(mode=0o700, parents=True)
        self.folder = folder
        for name in ("DRKQ_BROKER_URL", "DRKQ_STORE_URL", "DRKQ_RECORDED", "DRKQ_DEVICE"):
            os.environ.pop(name, None)
        for name in ("data", "cache", "state"):
            os.environ[f"DRKQ_{name.upper()}_DIR"] = str(folder / name)
        os.environ["XDG_RUNTIME_DIR"] = str(folder)
        # So that cuda:1 is the same device for NVML, torch and vLLM.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(str(Path(path).resolve()) for path in [ROOT, *paths]))

    @asynccontextmanager
    async def stack(self, devices: Sequence[str], command: Sequence[str] = ()) -> AsyncIterator["Bench"]:
        """Have workers on the devices, warm, for the length of a block; if this process is killed they end too."""
        with join(load_settings(), devices, say, command=command) as url:
            async with EvaluationQueue(url) as queue:
                bench = Bench(queue)
                await bench.warm_up(devices)
                yield bench

    async def drkq(
        self, *arguments: str, timeout_s: float, ranks: int = 1, environment: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as people do, on `ranks` processes; it and all that it started are ended after `timeout_s`."""
        launch = [] if ranks == 1 else ["torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone", "-m"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *launch, "drkernel_q", *arguments),
            env=os.environ | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate()
        except TimeoutError:
            process.terminate()  # torchrun has its ranks in sessions of their own, and ends them by itself
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            return subprocess.CompletedProcess(arguments, -signal.SIGTERM, "", f"not done within {timeout_s:.0f} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(arguments, process.returncode or 0, out.decode(), err.decode())

    async def status(self) -> dict[str, Any]:
        """Read `drkq status --json`."""
        done = await self.drkq("status", "--json", timeout_s=60.0)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


class Bench:
    """Asks the workers of a site."""

    def __init__(self, queue: EvaluationQueue) -> None:
        """Ask through an open queue."""
        self.queue = queue
        self.lanes: Counter[str] = Counter()
        """How many evaluations each device has in hand at a time."""

    async def cards(self, device: str) -> list[WorkerCard]:
        """List the cards of a device's worker, one a lane."""
        return [card for card in await self.queue.workers() if card.device == device]

    async def warm_up(self, devices: Sequence[str]) -> None:
        """Wait until all lanes are there, and let each of them judge something that does not count."""
        wanted = load_settings().lanes
        expected = Counter({device: lanes_of(find_device(device), wanted) for device in devices})
        give_up_at = time.monotonic() + LANES_S
        while self.lanes != expected and time.monotonic() < give_up_at:
            await asyncio.sleep(0.5)
            self.lanes = Counter(card.device for card in await self.queue.workers())
        numbers = iter(range(_WARMING, 2 * _WARMING))
        await asyncio.gather(
            *(
                self.judge(variant(next(numbers)), device, timing_budget_s=0.3)
                for device in devices
                for _ in range(2 * self.lanes[device])
            )
        )

    async def judge(self, source: str, device: str, **protocol: Any) -> Reply:
        """Have one kernel judged."""
        handle = await self.queue.submit(request(source, **protocol), device=device)
        return await handle

    async def judge_many(
        self, sources: Iterator[str], device: str, in_flight: int, **protocol: Any
    ) -> AsyncIterator[Reply]:
        """Have kernels judged, at most `in_flight` at a time."""
        requests = (request(source, **protocol) for source in sources)
        async for reply in self.queue.evaluate_many(requests, in_flight=in_flight, device=device):
            yield reply


class Stream:
    """Other kernels that a device judges in the background, one after the other in all its lanes."""

    def __init__(self, bench: Bench, device: str, numbers: Iterator[int], **protocol: Any) -> None:
        """Name the device, and the numbers that make kernels differ."""
        self.replies: list[tuple[float, Reply]] = []
        """When each came, by the monotonic clock, and the reply."""
        self.asked = 0
        self._bench, self._device, self._numbers, self._protocol = bench, device, numbers, protocol
        self._going, self._stopping = asyncio.Event(), False

    @property
    def done(self) -> int:
        """How many replies are there."""
        return len(self.replies)

    def since(self, began: float, ended: float) -> list[Reply]:
        """Return what came between two times of the monotonic clock."""
        return [reply for when, reply in self.replies if began <= when < ended]

    async def __aenter__(self) -> "Stream":
        """Begin, and wait until the first kernel is judged."""
        self._task = asyncio.create_task(self._run())
        first = asyncio.create_task(self._going.wait())
        await asyncio.wait({self._task, first}, return_when=asyncio.FIRST_COMPLETED)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ask for no more, and wait for what is on its way."""
        self._stopping = True
        await self._task

    async def _run(self) -> None:
        lanes = self._bench.lanes[self._device] or 1
        async for reply in self._bench.judge_many(self._sources(), self._device, lanes + 1, **self._protocol):
            self.replies.append((time.monotonic(), reply))
            self._going.set()

    def _sources(self) -> Iterator[str]:
        while not self._stopping:
            self.asked += 1
            yield variant(next(self._numbers))


def request(source: str, **protocol: Any) -> EvaluationRequest:
    """Ask for a kernel of the problem softmax to be judged anew."""
    return EvaluationRequest(
        id=uuid.uuid4().hex,
        problem=builtin("softmax"),
        kernel=Kernel(source=source),
        protocol=Protocol(**protocol),
        deadline_s=DEADLINE_S,
        fresh=True,
        submitted_at=datetime.now(UTC).isoformat(),
    )
