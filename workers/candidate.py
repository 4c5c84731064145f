"""The candidate's process: loads candidate code, runs what the judge asks, returns raw tensors and raw times.

Everything said from here is a claim. Nothing secret is here: no expected output, no seed of a later trial, no
statistic, no verdict. The judge decides what is asked and when, and kills this process when it is done.
"""

import contextlib
import functools
import gc
import importlib.util
import itertools
import os
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workers import fault, integrity, launch, sandbox, segment, state
from workers.profiler import Profiler, built_kernels
from workers.segment import DeviceSegment, HostSegment, Segment
from workers.shared import TensorSpec, flatten, layout, specs_from, unflatten
from workers.stopwatch import Stopwatch
from workers.wire import Channel, WireClosed, close_all

#: Longest error text that is sent, characters; the end of a traceback says most.
MAX_ERROR = 6000
#: Memory up to this size is poisoned in more pieces: the allocator keeps small blocks apart, bytes.
SMALL_BYTES = 2**20
#: Most free memory of torch's allocator that is filled before a call, blocks and bytes.
MAX_BLOCKS, MAX_POOL_BYTES = 256, 2 * 2**30
#: Most names that are sent in one reply.
MAX_NAMES = 100
_COMPILE_ERRORS = (
    "CompilationError",
    "UnsupportedLanguageConstruct",
    "CompileTimeAssertionFailure",
    "PTXASError",
)


class Harness:
    """Answers the judge's requests, one at a time."""

    def __init__(self, channel: Channel, device: str, workdir: str) -> None:
        """Prepare everything that does not need candidate code, and watch the process from now on."""
        self.channel = channel
        self.device = device
        self.pid = os.getpid()
        self.path = os.path.realpath(os.path.join(workdir, "candidate.py"))
        self.factory: Callable[..., Any] | None = None
        self.model: Any = None
        self.segments: dict[int, Segment] = {}
        self.source: Segment | None = None
        self.sink: Segment | None = None
        self.skeletons: list[Any] = []
        self.specs: list[TensorSpec] = []
        self.slots: list[list[Tensor]] = []
        self.slot = 0
        self.recent: deque[list[Tensor]] = deque()
        self.tensors: list[Tensor] = []
        self.sets: list[list[Any]] = []
        self.results: list[list[Tensor]] = []
        self.profiler = Profiler(device)
        self.stopwatch = Stopwatch(device)
        self.launches = launch.count_for_good(device)
        self.loads = launch.record_loads(device)
        self.sync: Callable[[], None] = torch._C._cuda_synchronize if device == "cuda" else lambda: None
        self.query: Callable[[], object] = torch.cuda.current_stream().query if device == "cuda" else lambda: True
        ours = (Harness, Stopwatch, Channel, Segment, HostSegment, DeviceSegment, Profiler)
        self.guard = state.Guard(device, self.path, ours)

    def serve(self) -> None:
        """Answer until the judge hangs up."""
        operations: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]] = {
            "share": self.share,
            "load": self.load,
            "build": self.build,
            "adopt": self.adopt,
            "call": self.call,
            "profile": self.profile,
            "preload": self.preload,
            "arm": self.arm,
            "timed": self.timed,
            "burst": self.burst,
            "snapshot": self.snapshot,
        }
        while True:
            message, fds = self.channel.receive(None)
            try:
                reply = operations[message["op"]](message, fds) | {"ok": True}
                reply["state"] = self.guard.changes()
            except BaseException as error:  # noqa: BLE001 - the boundary around candidate code: any end is an answer
                close_all([fd for fd in fds if _is_open(fd)])
                reply = _failure(error, message["op"], self.query)
            if os.getpid() != self.pid:  # a fork of the candidate must not answer in its parent's place
                os._exit(0)
            self.channel.send(reply)

    def share(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map memory of the judge's, which later requests name by its number."""
        self.segments[message["segment"]] = segment.adopt(
            fds[0], message["bytes"], on_device=message["on_device"], writable=message["writable"]
        )
        return {}

    def load(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Import the source as the module `candidate`."""
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(message["source"])
        spec = importlib.util.spec_from_file_location("candidate", self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["candidate"] = module
        spec.loader.exec_module(module)
        factory = getattr(module, "ModelNew", None)
        if not isinstance(factory, type):
            raise NameError("the source defines no class ModelNew")
        self.factory = factory
        return {}

    def build(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Make `ModelNew` under the seed of the weights, and give it the reference's state where the names fit."""
        tensors = self._read(message, "cpu")
        arguments = unflatten(message["arguments"], tensors)
        assert self.factory is not None
        torch.manual_seed(message["seed"])
        model = self.factory(*arguments)
        if isinstance(model, nn.Module):
            model = model.to(self.device).train(message["train"])
        self.model = model
        given = dict(zip(message["state"], tensors[len(tensors) - len(message["state"]) :], strict=True))
        return {"weights": _adopt_state(model, given)}

    def adopt(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Load another state into the model that there is."""
        given = dict(zip(message["state"], self._read(message, "cpu"), strict=True))
        return {"weights": _adopt_state(self.model, given)}

    def call(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Run one forward pass on the given inputs and put the outputs into the judge's memory."""
        fresh = self._read(message, self.device)
        self.tensors = _rewritten(self.tensors, fresh) if message["reuse"] else fresh
        inputs = [unflatten(skeleton, self.tensors) for skeleton in message["inputs"]]
        self._set_mode(message["train"])
        pristine = list(map(integrity.checksum, self.tensors))
        before = _state_checksums(self.model)
        _poison(self.device, message["sizes"], message["poison"])
        watch = {"ablate": launch.suppressed, "perturb": launch.perturbed}.get(
            message["meddle"], contextlib.nullcontext
        )
        self.launches()
        with watch(self.device) as written, torch.set_grad_enabled(message["grad"]):
            start = time.perf_counter()
            result = self._forward(inputs)
            self.sync()
            seconds = time.perf_counter() - start
        outputs: list[Tensor] = []
        skeleton = flatten(result, outputs)
        reply = self._describe(outputs, self.tensors) | {"skeleton": skeleton, "seconds": seconds}
        changed = pristine != list(map(integrity.checksum, self.tensors))
        after = _state_checksums(self.model)
        mutated = [[name, value[0]] for name, value in before.items() if after.get(name, value) != value]
        reply |= {
            "changed": changed,
            "mutated": mutated[:MAX_NAMES],
            "written": written if message["meddle"] == "perturb" else [],
        }
        return reply | self._deliver(outputs, self.segments[message["sink"]])

    def profile(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Start to profile the timed calls that follow, or stop and say what ran, and which kernels are of whose."""
        if message["on"]:
            self.profiler.start()
            return {}
        trace = self.profiler.stop()
        own = {(load.name, load.threads, load.registers) for load in self.loads if self._is_own(load.file)}
        return {
            "rows": [list(row) for row in trace.rows],
            "spans": [list(span) for span in trace.spans],
            "fault": trace.fault,
            "own": [list(kernel) for kernel in sorted(own)],
            "built": [list(kernel) for kernel in built_kernels(os.path.dirname(self.path))],
        }

    def arm(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Get ready to be timed on inputs that the judge will put into memory it has shared."""
        self.source = self.segments[message["source"]]
        self.skeletons = message["inputs"]
        self.sink = self.segments[message["sink"]]
        self.specs = specs_from(message["tensors"], self.source.size)
        self.slots = [self.source.read(self.specs, self.device) for _ in range(message["slots"])]
        self.recent = deque(maxlen=message["slots"] - 1)
        return {}

    def timed(self, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Copy the inputs that lie ready to the next buffer, and time one call on them."""
        assert self.source is not None
        self.slot = (self.slot + 1) % len(self.slots)
        tensors = self.slots[self.slot]
        for tensor, spec in zip(tensors, self.specs, strict=True):
            tensor.copy_(self.source.view(spec))
        inputs = [unflatten(skeleton, tensors) for skeleton in self.skeletons]
        self.launches()
        before = len(self.loads)
        with torch.no_grad():
            milliseconds, outputs = self.stopwatch.time(lambda: self._forward(inputs))
        self.recent.append(outputs)  # the next ones come to lie elsewhere
        delivered = self._deliver(outputs, self.sink) | {"skeleton": flatten(list(outputs), [])}
        reply = self._describe(outputs, tensors) | delivered
        reply |= {"late_ms": self.stopwatch.late_ms, "settled": self.stopwatch.settled}
        return reply | {"ms": milliseconds, "compiled": len(self.loads) - before}

    def _forward(self, inputs: list[Any]) -> Any:
        if not self.profiler.on:
            return self.model(*inputs)
        with self.profiler.call():
            return self.model(*inputs)

    def preload(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Copy the sets of inputs of the burst that follows to the device."""
        source = self.segments[message["source"]]
        self.sets, self.results = [], []
        for specs in message["sets"]:
            tensors = source.read(specs_from(specs, source.size), self.device)
            self.sets.append([unflatten(skeleton, tensors) for skeleton in self.skeletons])
        self.sync()
        return {}

    def burst(self, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Make one timed call on each preloaded set, while the judge looks at its own clock."""
        with torch.no_grad():
            calls = [functools.partial(self._forward, inputs) for inputs in self.sets]
            self.results, checksums = self.stopwatch.burst(calls)
        return {"checksums": checksums}

    def snapshot(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Deliver the outputs of one of the calls of the last burst."""
        outputs = self.results[message["index"]]
        reply = self._describe(outputs, ()) | {"skeleton": flatten(list(outputs), [])}
        return reply | self._deliver(outputs, self.segments[message["sink"]])

    def _set_mode(self, train: bool) -> None:
        if isinstance(self.model, nn.Module):
            self.model.train(train)

    def _read(self, message: dict[str, Any], device: str) -> list[Tensor]:
        segment = self.segments[message["source"]]
        return segment.read(specs_from(message["tensors"], segment.size), device)

    def _describe(self, outputs: list[Tensor], inputs: Sequence[Tensor]) -> dict[str, Any]:
        """Say what can be said of outputs without sending them."""
        parameters = list(self.model.parameters()) if isinstance(self.model, nn.Module) else []
        codes = integrity.output_codes(outputs, [*inputs, *parameters])
        launched = [[name, self._is_own(file), count] for (name, file), count in self.launches().items()]
        return {"codes": codes, "launches": launched}

    def _deliver(self, outputs: list[Tensor], sink: Segment | None) -> dict[str, Any]:
        """Put outputs into the judge's memory, and say where; none if copying them would run code of theirs."""
        assert sink is not None
        if not all(map(integrity.is_readable, outputs)):
            return {"shapes": [], "tensors": None}
        shapes = [[str(output.dtype).removeprefix("torch."), list(output.shape)] for output in outputs]
        specs, size = layout(outputs)
        if size > sink.size:
            return {"shapes": shapes, "tensors": None}
        sink.write(specs, [output.detach() for output in outputs])
        return {"shapes": shapes, "tensors": [list(spec) for spec in specs]}

    def _is_own(self, file: str) -> bool:
        return os.path.realpath(file) == self.path


def _rewritten(old: list[Tensor], new: list[Tensor]) -> list[Tensor]:
    """Put new contents into old tensors behind their backs: same objects, same addresses, same version counters."""
    if [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in old] != [
        (tensor.shape, tensor.dtype, tensor.stride()) for tensor in new
    ]:
        return new
    for tensor, content in zip(old, new, strict=True):
        tensor.data.copy_(content)
    return old


def _poison(device: str, sizes: list[int], pattern: int) -> None:
    """Leave a pattern in memory that the allocator will hand out next, so that nobody finds old results there."""
    wanted = [size for size in sizes if size for _ in range(4 if size <= SMALL_BYTES else 2)] + _free_blocks(device)
    blocks = [torch.empty(size, dtype=torch.uint8, device=device).fill_(pattern) for size in wanted]
    for block in blocks:  # not so uniform that a look at a few bytes would tell
        block[torch.randint(block.numel(), (block.numel() // 64 + 1,), device=device)] = 0
        block[:64] = block[-64:] = 0
    blocks.clear()


def _free_blocks(device: str) -> list[int]:
    """List the sizes of blocks that torch's allocator holds free, the largest first, of `MAX_POOL_BYTES` at most."""
    if device != "cuda":
        return []
    held = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    segments = [each for each in held if each["segment_pool_id"] == (0, 0)]
    blocks = [block["size"] for each in segments for block in each["blocks"] if block["state"] == "inactive"]
    sizes = sorted(blocks, reverse=True)[:MAX_BLOCKS]
    return [size for size, before in zip(sizes, itertools.accumulate(sizes), strict=True) if before <= MAX_POOL_BYTES]


def _adopt_state(model: Any, given: dict[str, Tensor]) -> str:
    """Load the reference's state into `model` if every name and shape fits; say what was done.

    The same seed already gives the same weights to a model that draws them in the same order (`equal`).
    """
    if not isinstance(model, nn.Module):
        return "foreign"
    own = model.state_dict()
    if own.keys() != given.keys() or any(own[name].shape != given[name].shape for name in own):
        return "foreign"
    if all(integrity.same_bits(own[name].cpu(), given[name].to(own[name].dtype)) for name in own):
        return "equal"
    model.load_state_dict(given)
    return "loaded"


def _state_checksums(model: Any) -> dict[str, tuple[bool, int]]:
    """Say of each parameter and buffer whether it is a parameter, and sum up its bits."""
    if not isinstance(model, nn.Module):
        return {}
    named = [(True, model.named_parameters()), (False, model.named_buffers())]
    plain = [(kind, name, tensor) for kind, each in named for name, tensor in each if integrity.is_plain(tensor)]
    return {name: (kind, integrity.checksum(tensor)) for kind, name, tensor in plain}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _failure(error: BaseException, operation: str, query: Callable[[], object]) -> dict[str, Any]:
    """Describe an exception of candidate code; `kind` decides the outcome."""
    chain: list[str] = []
    link: BaseException | None = error
    while link is not None and len(chain) < 10:  # noqa: PLR2004 - no honest chain is longer
        chain.append(type(link).__name__)
        link = link.__cause__ or link.__context__
    found = fault.of_exception(error, query)
    if found in (fault.HOST_MEMORY, fault.DEVICE_MEMORY):
        kind = "memory"
    elif fault.loses_context(found):
        kind = "runtime"
    elif operation == "load" or any(name in _COMPILE_ERRORS for name in chain):
        kind = "compile"
    else:
        kind = "runtime"
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as broken:  # noqa: BLE001 - an exception whose own text raises is still only an error
        text = f"{type(error).__name__} (its text raised {type(broken).__name__})"
    return {"ok": False, "kind": kind, "error": text[-MAX_ERROR:], "fault": found}


def _hide() -> None:
    """Keep the harness out of the candidate's way: not among the modules, nor among the objects that gc lists."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("workers", "drkernel_q")]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def main(conn: int, device: str, plan: sandbox.Confinement) -> None:
    """Confine this fresh fork, say so, and serve the judge."""
    os.chdir(plan.workdir)
    active = sandbox.confine(plan)
    environment = sandbox.clean_environment(plan.workdir)
    os.environ.clear()
    os.environ.update(environment)
    import tempfile

    tempfile.tempdir = plan.workdir  # the zygote's cached value lies outside
    channel = Channel(socket.socket(fileno=conn))
    if device == "cuda":
        torch.zeros(1, device="cuda")
    harness = Harness(channel, device, plan.workdir)
    _hide()
    channel.send({"ok": True, "isolation": active})
    try:
        harness.serve()
    except WireClosed:
        return
