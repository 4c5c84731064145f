"""Whether what goes on on one device changes what is timed on another: idle, judging, and generating beside it."""

import asyncio
import importlib.util
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.faults import SOFTMAX
from benchmarks.multi_device.found import INTERFERENCE_PERCENT, Line, disturbance, scatter, undisturbed
from benchmarks.multi_device.host_load import HostLoad
from benchmarks.multi_device.site import Bench, Order, Site, Stream
from benchmarks.stopwatch import WRAPPER
from drkernel_q.errors import DrkqError
from drkernel_q.trajectory import Message
from policy.sampler.protocol import Sampler, Sampling
from tests.judging import EXAMPLES

if TYPE_CHECKING:
    from policy.model.shape import Size
    from policy.sampler.server import VllmServer

#: What is timed: a kernel, and torch's own as its own rival, whose speedup is 1.
KERNEL, RIVAL = "softmax", "A/A"
#: Evaluations of each of the two in a row, before another neighbour comes.
_BLOCK = 2
VLLM_S = 180.0
VLLM_FLAGS = ("--enforce-eager", "--max-model-len", "2048", "--gpu-memory-utilization", "0.4")
#: Completions at a time, and their length, tokens.
WRITTEN, LONG = {"cuda": 64, "cpu": 2}, {"cuda": 256, "cpu": 32}


class Writer(NamedTuple):
    """Who generates."""

    engine: str
    """`vllm`, or `transformers` and why not the other."""
    sampler: Sampler


class Figures:
    """What was found beside one neighbour."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.speedups: dict[str, list[float]] = {KERNEL: [], RIVAL: []}
        self.times_ms: dict[str, list[float]] = {KERNEL: [], RIVAL: []}
        self.failed = 0
        self.beside = 0
        """Kernels judged, or tokens written, meanwhile."""
        self.seconds = 0.0
        self.host: Line = {}

    def facts(self) -> Line:
        """Describe them."""
        found: Line = {"failed": self.failed, "beside_a_minute": round(60 * self.beside / max(self.seconds, 1e-9), 1)}
        for name, speedups in self.speedups.items():
            found[name] = {"speedup": scatter(speedups), "candidate_ms": scatter(self.times_ms[name])}
        return found | {"host": self.host}


async def interference(order: Order, folder: Path) -> None:
    """Time the same kernel on the first device beside three neighbours in turn, and compare."""
    if len(order.devices) < 2:
        order.tell("interference", "end", {"not_run": "there is one device only"})
        return
    site = Site(folder / "site")
    async with writer(site.folder / "model", order) as written_by, site.stack(order.devices[:2]) as bench:
        found = {name: Figures() for name in ("idle", "judging", "generating")}
        ends_at = time.monotonic() + order.seconds
        numbers = itertools.count()
        for rounds in itertools.count(1):
            for name, figures in found.items():
                await block(name, figures, order, bench, written_by, numbers)
            last = rounds * _BLOCK >= order.repeats or (rounds > 1 and time.monotonic() > ends_at)
            tell(order, found, written_by, rounds, last)
            if last:
                return


def tell(order: Order, found: dict[str, Figures], written_by: Writer, rounds: int, last: bool) -> None:
    """Write down what is known after a round; bounds are for the last one."""
    quiet = found["idle"]
    for name, figures in found.items():
        by = {"engine": written_by.engine} if name == "generating" else {}
        order.tell("interference", name, {"rounds": rounds} | by | figures.facts())
    for name, kernel in itertools.product(("judging", "generating"), (KERNEL, RIVAL)):
        moved = disturbance(quiet.speedups[kernel], found[name].speedups[kernel])
        holds, bound = (undisturbed(moved), f"at most {INTERFERENCE_PERCENT} %") if last else (None, "")
        order.tell("interference", f"{kernel} beside {name}", {"rounds": rounds} | moved, holds, bound)


async def block(
    name: str, figures: Figures, order: Order, bench: Bench, written_by: Writer, numbers: Iterator[int]
) -> None:
    """Time both kernels some times beside one neighbour."""
    first, second = order.devices[:2]
    beside: AbstractAsyncContextManager[Any] = nullcontext()
    if name == "judging":
        beside = Stream(bench, second, numbers, timing_budget_s=order.budget_s)
    elif name == "generating":
        beside = Generation(written_by.sampler, WRITTEN[order.kind], LONG[order.kind])
    async with beside as going:
        began, before = time.monotonic(), going.done if going is not None else 0
        with HostLoad() as load:
            for _ in range(_BLOCK):
                await judge(KERNEL, SOFTMAX, first, figures, bench, order)
                await judge(RIVAL, WRAPPER, first, figures, bench, order)
        figures.seconds += time.monotonic() - began
        figures.beside += (going.done if going is not None else 0) - before
        figures.host = load.host


async def judge(name: str, source: str, device: str, figures: Figures, bench: Bench, order: Order) -> None:
    """Have one kernel judged on the quiet device."""
    whose = {"backend": "any"} if name == RIVAL else {}
    reply = await bench.judge(source, device, timing_budget_s=2 * order.budget_s, **whose)
    timing = reply.evaluation.timing if reply.evaluation is not None else None
    if timing is None:
        figures.failed += 1
        return
    figures.speedups[name].append(timing.speedup)
    figures.times_ms[name].append(timing.candidate_ms)


class Generation:
    """Completions that are written in the background, so many at a time."""

    def __init__(self, sampler: Sampler, at_once: int, tokens: int) -> None:
        """Name who writes, and how much."""
        self.done = 0
        """Tokens."""
        self._sampler, self._at_once, self._tokens = sampler, at_once, tokens
        self._going, self._stopping = asyncio.Event(), False

    async def __aenter__(self) -> "Generation":
        """Begin, and wait until the first completion is there."""
        text = "Write a kernel for this. " + (EXAMPLES / "softmax.py").read_text()[:1000]
        self._prompt = self._sampler.encode([Message(role="user", content=text)])
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(self._at_once)]
        first = asyncio.create_task(self._going.wait())
        await asyncio.wait({*self._tasks, first}, return_when=asyncio.FIRST_COMPLETED)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ask for no more, and wait for what is being written."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _write(self, number: int) -> None:
        while not self._stopping:
            sample = await self._sampler.sample(self._prompt, Sampling(max_new_tokens=self._tokens, seed=number))
            self.done += len(sample.output_ids)
            self._going.set()


@asynccontextmanager
async def writer(model: Path, order: Order) -> AsyncIterator[Writer]:
    """Make a small model and have it on the second device: in vLLM, or in this process where there is no vLLM."""
    from policy.model.model import make_model  # torch takes seconds to import
    from policy.sampler.transformers import TransformersSampler

    size: Size = "5m" if order.kind == "cuda" else "tiny"
    make_model(model, size, [path.read_text() for path in EXAMPLES.glob("*.py")], vocabulary=400, context_tokens=2048)
    device = order.devices[1]
    server = await vllm_server(str(model), device)
    if isinstance(server, str):
        async with TransformersSampler(model, device="cpu" if order.kind == "cpu" else device) as own:
            yield Writer(f"transformers, since {server}", own)
        return
    from policy.sampler.vllm import VllmSampler

    try:
        async with VllmSampler(str(model), urls=[server.url], tokenizer=model) as sampler:
            yield Writer("vllm", sampler)
    finally:
        await asyncio.to_thread(server.stop)


async def vllm_server(model: str, device: str) -> "VllmServer | str":
    """Start vLLM on a device, or say why there is none."""
    if device.startswith("cpu"):
        return "vLLM is for GPUs"
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed"
    from policy.sampler.server import VllmServer

    server = VllmServer(model, options=VLLM_FLAGS, environment={"CUDA_VISIBLE_DEVICES": device.partition(":")[2]})
    try:
        await server.ensure(VLLM_S)
    except DrkqError as error:
        await asyncio.to_thread(server.stop)
        return f"vLLM did not start: {error}"
    except BaseException:  # a cancellation too would leave it running
        await asyncio.to_thread(server.stop)
        raise
    return server
