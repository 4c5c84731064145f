"""The candidate's process: loads candidate code, runs what the judge asks, returns raw tensors and raw times.

Everything said from here is a claim. Nothing secret is here: no expected output, no seed of a later trial, no
statistic, no verdict. The judge decides what is asked and when, and kills this process when it is done.
"""

import gc
import importlib.util
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workers import integrity, profiling, sandbox
from workers.shared import PIN_BYTES, Segment, TensorSpec, flatten, layout, specs_from, unflatten
from workers.stopwatch import Stopwatch
from workers.wire import Channel, WireClosed, close_all

#: Longest error text that is sent, characters; the end of a traceback says most.
MAX_ERROR = 6000
#: Timed calls take turns over this many input buffers.
SLOTS = 3
_COMPILE_ERRORS = (
    "CompilationError",
    "UnsupportedLanguageConstruct",
    "CompileTimeAssertionFailure",
    "PTXASError",
)


class Harness:
    """Answers the judge's requests, one at a time."""

    def __init__(self, channel: Channel, device: str, workdir: str) -> None:
        """Prepare everything that does not need candidate code."""
        self.channel = channel
        self.device = device
        self.workdir = workdir
        self.pid = os.getpid()
        self.path = os.path.join(workdir, "candidate.py")
        self.factory: Callable[..., Any] | None = None
        self.model: Any = None
        self.stopwatch: Stopwatch | None = None
        self.segments: dict[int, Segment] = {}
        self.source: Segment | None = None
        self.skeletons: list[Any] = []
        self.specs: list[TensorSpec] = []
        self.slots: list[list[Tensor]] = []
        self.slot = 0
        self.last: list[Tensor] = []
        self.depths = integrity.mode_depths()
        self.sync: Callable[[], None] = torch._C._cuda_synchronize if device == "cuda" else lambda: None

    def serve(self) -> None:
        """Answer until the judge hangs up."""
        operations: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]] = {
            "share": self.share,
            "load": self.load,
            "build": self.build,
            "call": self.call,
            "profile": self.profile,
            "arm": self.arm,
            "timed": self.timed,
            "snapshot": self.snapshot,
        }
        while True:
            message, fds = self.channel.receive(None)
            try:
                reply = operations[message["op"]](message, fds) | {"ok": True}
            except BaseException as error:  # noqa: BLE001 - the boundary around candidate code: any end is an answer
                close_all([fd for fd in fds if _is_open(fd)])
                reply = _failure(error, message["op"])
            if os.getpid() != self.pid:  # a fork of the candidate must not answer in its parent's place
                os._exit(0)
            self.channel.send(reply)

    def share(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map memory of the judge's, which later requests name by its number."""
        segment = Segment(fds[0], message["bytes"], writable=message["writable"])
        if self.device == "cuda" and segment.size >= PIN_BYTES:
            segment.pin()
        self.segments[message["segment"]] = segment
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
        return {"state": _adopt_state(model, given)}

    def call(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Run one forward pass on the given inputs and put the outputs into the judge's memory."""
        tensors = self._read(message, self.device)
        inputs = [unflatten(skeleton, tensors) for skeleton in message["inputs"]]
        if isinstance(self.model, nn.Module):
            self.model.train(message["train"])
        pristine = [tensor.clone() for tensor in tensors]
        with profiling.launches(self.device) as counts, torch.set_grad_enabled(message["grad"]):
            start = time.perf_counter()
            result = self.model(*inputs)
            self.sync()
            seconds = time.perf_counter() - start
        reply = self._deliver(result, tensors, self.segments[message["sink"]])
        changed = not all(integrity.same_bits(old, new) for old, new in zip(pristine, tensors, strict=True))
        launched = [[name, self._is_own(file), count] for (name, file), count in counts.items()]
        return reply | {"changed": changed, "launches": launched, "seconds": seconds}

    def profile(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Profile forward passes on the given inputs."""
        tensors = self._read(message, self.device)
        inputs = [unflatten(skeleton, tensors) for skeleton in message["inputs"]]
        if isinstance(self.model, nn.Module):
            self.model.train(message["train"])
        with torch.no_grad():
            rows, counts = profiling.record(self.device, lambda _: self.model(*inputs), message["calls"])
        own = sorted({name for name, file in counts if self._is_own(file)})
        return {"rows": [list(row) for row in rows[: 4 * profiling.MAX_ROWS]], "own": own}

    def arm(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Get ready to be timed on inputs that the judge will put into memory it has shared."""
        self.source = self.segments[message["source"]]
        self.skeletons = message["inputs"]
        self.specs = specs_from(message["tensors"], self.source.size)
        self.slots = [self.source.read(self.specs, self.device) for _ in range(SLOTS)]
        self.stopwatch = self.stopwatch or Stopwatch(self.device)
        return {}

    def timed(self, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Copy the inputs that lie ready to the next buffer, and time one call on them."""
        assert self.source is not None
        assert self.stopwatch is not None
        self.slot = (self.slot + 1) % SLOTS
        tensors = self.slots[self.slot]
        for tensor, spec in zip(tensors, self.specs, strict=True):
            tensor.copy_(self.source.view(spec))
        inputs = [unflatten(skeleton, tensors) for skeleton in self.skeletons]
        self.last = []
        with torch.no_grad():
            milliseconds, result = self.stopwatch.time(lambda: self.model(*inputs))
        flatten(result, self.last)
        return {"ms": milliseconds}

    def snapshot(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Deliver the outputs of the last timed call."""
        return self._deliver(list(self.last), (), self.segments[message["sink"]])

    def _read(self, message: dict[str, Any], device: str) -> list[Tensor]:
        segment = self.segments[message["source"]]
        return segment.read(specs_from(message["tensors"], segment.size), device)

    def _deliver(self, result: Any, inputs: Sequence[Tensor], sink: Segment) -> dict[str, Any]:
        outputs: list[Tensor] = []
        skeleton = flatten(result, outputs)
        parameters = list(self.model.parameters()) if isinstance(self.model, nn.Module) else []
        codes = integrity.output_codes(outputs, [*inputs, *parameters])
        if integrity.mode_depths() != self.depths:
            codes.append("E1")
        reply = {"skeleton": skeleton, "codes": codes, "tensors": None, "shapes": []}
        if "D3" not in codes and "C11" not in codes:
            reply["shapes"] = [[str(o.dtype).removeprefix("torch."), list(o.shape)] for o in outputs]
            specs, size = layout(outputs)
            if size <= sink.size:
                sink.write(specs, [output.detach() for output in outputs])
                reply["tensors"] = [list(spec) for spec in specs]
        return reply

    def _is_own(self, file: str) -> bool:
        return os.path.realpath(file) == os.path.realpath(self.path)


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


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _failure(error: BaseException, operation: str) -> dict[str, Any]:
    """Describe an exception of candidate code; `kind` decides the outcome."""
    chain: list[str] = []
    link: BaseException | None = error
    while link is not None and len(chain) < 10:  # noqa: PLR2004 - no honest chain is longer
        chain.append(type(link).__name__)
        link = link.__cause__ or link.__context__
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        kind = "memory"
    elif operation == "load" or any(name in _COMPILE_ERRORS for name in chain):
        kind = "compile"
    else:
        kind = "runtime"
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as broken:  # noqa: BLE001 - an exception whose own text raises is still only an error
        text = f"{type(error).__name__} (its text raised {type(broken).__name__})"
    return {"ok": False, "kind": kind, "error": text[-MAX_ERROR:]}


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
    gc.unfreeze()
    harness = Harness(channel, device, plan.workdir)
    channel.send({"ok": True, "isolation": active})
    try:
        harness.serve()
    except WireClosed:
        return
