"""The candidate's process: loads candidate code, runs what the judge asks, returns raw tensors and raw times.

Everything said from here is a claim. Nothing secret is here: no expected output, no seed of a later trial, no
statistic, no verdict. The judge decides what is asked and when, and kills this process when it is done.

Candidate code, and whatever touches what it has made or was given (`workers.harness.theirs`), runs on a thread of its
own (`workers.harness.outside`), where all of that ends its life too, since code may hang on it. It gets other tensor
objects than the harness has, of the same memory. What is said is sealed by functions that it cannot reach
(`workers.harness.witness`).
"""

import contextlib
import functools
import gc
import os
import socket
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from workers.exchange import integrity, segment
from workers.exchange.segment import Segment
from workers.exchange.shared import flatten, layout, specs_from, unflatten
from workers.exchange.stopwatch import Job, Stopwatch, keep
from workers.harness import theirs
from workers.harness.launch import Launcher, record_loads
from workers.harness.lent import aliases_of, rewrite
from workers.harness.outside import Outside, OutsideFailed
from workers.harness.poison import poison
from workers.harness.profiler import Profiler, built_kernels
from workers.harness.slots import Slots
from workers.harness.state import Guard
from workers.harness.text import Text
from workers.harness.warm import warm_up
from workers.harness.witness import ender, speaker
from workers.isolation import sandbox
from workers.isolation.wire import Channel, WireClosed, close_all

#: What says that a call of a burst is over.
MARK = b"\0"
#: Most names that are sent in one reply.
MAX_NAMES = 100


class Harness:
    """Answers the judge's requests, one at a time."""

    def __init__(self, channel: Channel, key: bytes, device: str, workdir: str) -> None:
        """Prepare all that needs no candidate code, and watch the process from now on; `key` seals what is said."""
        self.channel = channel
        self.device = device
        self.path = os.path.realpath(os.path.join(workdir, "candidate.py"))
        self.factory: Callable[..., Any] | None = None
        self.model: Any = None
        self.segments: dict[int, Segment] = {}
        self.sink: Segment | None = None
        self.skeletons: list[Any] = []
        self.slots: Slots | None = None
        self.tensors: list[Tensor] = []
        self.aliases: list[Tensor] = []
        self.lent: list[Any] = []
        self.spent: list[Any] = []
        self.sets: list[list[Any]] = []
        self.results: list[list[Tensor]] = []
        self.profiler = Profiler(device)
        self.no_scope = contextlib.nullcontext()
        self.clock = time.perf_counter
        self.train: bool | None = None
        self.stopwatch = Stopwatch(device)
        self.text = Text()
        self.launcher = Launcher(device, self.text)
        self.launches: list[Any] = []
        self.loads = record_loads(device, self.text)
        self.write = os.write
        warm_up(device, self.stopwatch)
        self.sync: Callable[[], None] = torch._C._cuda_synchronize if device == "cuda" else lambda: None
        self.query: Callable[[], object] = torch.cuda.current_stream().query if device == "cuda" else lambda: True
        self.outside = Outside()
        self.outside.ask(self.sync)  # makes the device's context that thread's too
        self.guard = Guard(device, ask=self.outside.ask, collects=lambda: self.outside.collects)
        self.stopwatch.wake, self.stopwatch.settle = (gc.enable,), (self.guard.settle,)
        self.speak = speaker(channel.sock, key)
        self.outside.look = self.guard.look
        self.outside.insist = ender(self.guard.check, self.guard.changes, self.speak)

    def serve(self) -> None:
        """Answer until the judge hangs up."""
        operations: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]] = {
            "share": self.share,
            "load": self.load,
            "build": self.build,
            "adopt": self.adopt,
            "replace": self.replace,
            "call": self.call,
            "rehearse": self.rehearse,
            "profile": self.profile,
            "preload": self.preload,
            "arm": self.arm,
            "timed": self.timed,
            "burst": self.burst,
            "snapshot": self.snapshot,
        }
        speak, changes = self.speak, self.guard.changes
        while True:
            message, fds = self.channel.receive(None)
            self.outside.looked = None
            self.outside.describe = functools.partial(theirs.failure, operation=message["op"], query=self.query)
            try:
                reply = operations[message["op"]](message, fds) | {"ok": True}
            except OutsideFailed as failed:
                close_all([fd for fd in fds if _is_open(fd)])
                self.lent += self.stopwatch.held
                reply = failed.reply
            except Exception as error:  # noqa: BLE001 - what candidate code has made may be unfit for anything
                close_all([fd for fd in fds if _is_open(fd)])
                self.lent += self.stopwatch.held
                reply = theirs.failure(error, message["op"], self.query)
            self._let_go()
            speak(reply | {"state": changes(self.outside.looked)})

    def _let_go(self) -> None:
        """Let go of what was lent; code that hangs on it runs where it belongs."""
        if self.lent:
            with contextlib.suppress(OutsideFailed):  # to let go fails only if somebody breaks into it
                self.outside.run(theirs.forget, *self.lent)
            self.lent.clear()

    def share(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map memory of the judge's, which later requests name by its number."""
        self.segments[message["segment"]] = segment.adopt(
            fds[0], message["bytes"], on_device=message["on_device"], writable=message["writable"]
        )
        return {}

    def load(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Import the source as the module `candidate`."""
        if message["tf32"]:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
            self.guard.accept("numeric flags")
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(message["source"])
        self.text.read(message["source"], self.path)
        self.guard.keep(self.text)
        self.factory = self.outside.run(theirs.imported, self.path)
        return {}

    def build(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Make `ModelNew` under the seed of the weights, and give it the reference's state where the names fit."""
        tensors = aliases_of(self._read(message, "cpu"))
        arguments = unflatten(message["arguments"], tensors)
        given = dict(zip(message["state"], tensors[len(tensors) - len(message["state"]) :], strict=True))
        old, self.model = [self.model], None
        self.lent += [tensors, arguments, given]
        self.outside.run(theirs.forget, old)
        how = (message["seed"], self.device, message["train"])
        self.train = message["train"]
        self.model = self.outside.run(theirs.made, self.factory, arguments, *how)
        return {"weights": self.outside.run(theirs.adopt_state, self.model, given)}

    def adopt(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Load another state into the model that there is."""
        given = dict(zip(message["state"], aliases_of(self._read(message, "cpu")), strict=True))
        self.lent.append(given)
        return {"weights": self.outside.run(theirs.adopt_state, self.model, given)}

    def replace(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Give weights that are every other of the tensors what the next one holds."""
        given = aliases_of(self._read(message, self.device))
        self.lent.append(given)
        return {"there": self.outside.run(theirs.replace_state, self.model, given[::2], given[1::2])}

    def call(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Run one forward pass on the given inputs and put the outputs into the judge's memory."""
        fresh = self._read(message, self.device)
        if not (message["reuse"] and rewrite(self.tensors, fresh)):
            self.lent.append(self.aliases)
            self.tensors, self.aliases = fresh, aliases_of(fresh)
        inputs = self._lend(message["inputs"], self.aliases)
        pristine = list(map(integrity.checksum, self.tensors))
        self._set_mode(train=message["train"])
        poisoned = (poison, self.device, message["sizes"], message["poison"])  # each thread has free memory of its own
        first = ((theirs.state_checksums, self.model), poisoned, (self.launcher.take,))
        with self.launcher.meddled(message["meddle"]) as seen:
            made, (before, *_) = self._call(inputs, self.aliases, grad=message["grad"], first=first)
        seconds, skeleton, codes, outputs = made
        changed = pristine != list(map(integrity.checksum, self.tensors))
        delivered = self._deliver(outputs, self.segments[message["sink"]])  # before any code of theirs can run again
        lent, self.lent = [*self.lent, *seen], []
        lasts = ((self.launcher.take,), (theirs.plainly, *seen), (theirs.forget, *lent))
        after, launches, (written, within), _ = self.outside.run_all((theirs.state_checksums, self.model), *lasts)
        mutated = [[name, value[0]] for name, value in before.items() if after.get(name, value) != value]
        reply = {"skeleton": skeleton, "seconds": seconds, "codes": codes, "changed": changed, "launches": launches}
        reply |= {"mutated": mutated[:MAX_NAMES], "written": written, "within": within[:MAX_NAMES]}
        return reply | delivered

    def _set_mode(self, *, train: bool) -> None:
        """Set the mode of the model where it is another: calls that are timed set none."""
        if self.train is not train:
            self.train = train
            self.outside.run(theirs.set_mode, self.model, train)

    def _call(
        self, inputs: list[Any], aliases: list[Tensor], *, grad: bool, first: tuple[Job, ...] = ()
    ) -> tuple[tuple[float, Any, list[str], list[Tensor]], list[Any]]:
        """Make one call as a timed one is made, so that none can be told from the other by who calls.

        Returns seconds, the skeleton of what it returned, what `theirs.codes_of` says, and plain outputs; and what the
        `first` jobs have returned, which are done right before.
        """
        box: list[Any] = []
        grads, clock = torch._C._set_grad_enabled, (self.clock,)
        made = (keep, box, self._forward(inputs, timed=False))
        unboxed = (theirs.unboxed, box, aliases, self.model)
        jobs = ((grads, grad), clock, made, (self.sync,), clock, (grads, True), unboxed)
        done = self.outside.run_all(*first, *jobs)
        _, start, _, _, end, _, (skeleton, codes, outputs) = done[len(first) :]
        self.lent.append(outputs)  # the last of them is let go of out there, with all that hangs on its memory
        return (end - start, skeleton, codes, outputs), done[: len(first)]

    def rehearse(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run one forward pass that nobody looks at; the first Triton function is launched when the judge says so."""
        inputs = self._lend(message["inputs"], aliases_of(self._read(message, self.device)))
        self._set_mode(train=message["train"])
        try:
            with self.launcher.held(functools.partial(theirs.held, self.write, os.read, fds[0])):
                self._call(inputs, [], grad=False)
        finally:
            close_all(fds)
        self.outside.ask(self.launcher.take)
        return {}

    def profile(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Start to profile the timed calls that follow, or stop and say what ran, and which kernels are of whose."""
        if message["on"]:
            self._set_mode(train=message["train"])
            self.profiler.start()
            return {}
        trace = self.profiler.stop()
        return {
            "rows": [list(row) for row in trace.rows],
            "others": [list(row) for row in trace.others],
            "spans": [list(span) for span in trace.spans],
            "overlaps": [list(overlap) for overlap in trace.overlaps],
            "fault": trace.fault,
            "own": self.outside.ask(theirs.own_kernels, self.loads),
            "built": [list(kernel) for kernel in built_kernels(os.path.dirname(self.path))],
        }

    def arm(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Get ready to be timed on inputs that the judge will put into memory it has shared."""
        source = self.segments[message["source"]]
        self.skeletons = message["inputs"]
        self.sink = self.segments[message["sink"]]
        self.lent += self.slots.lent if self.slots else ()
        self.slots = Slots(source, specs_from(message["tensors"], source.size), message["slots"], self.device)
        return {}

    def timed(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Copy the inputs that lie ready to the next buffer, and time one call on them.

        Outputs that nobody will look at are not delivered. What can be let go of goes with the call, on its thread:
        each hand-over takes longer than most kernels.
        """
        assert self.slots is not None
        aliases = self.slots.turn()
        inputs, returned, is_looked_at = self._lend(self.skeletons, aliases), list[Tensor](), message["looked_at"]
        before = len(self.loads)
        self.spent, self.lent = self.lent + self.slots.spent(), []
        how = (self._forward(inputs), self._without_gradients, returned if is_looked_at else None)
        milliseconds, outputs = self.stopwatch.time(*how, is_looked_at=is_looked_at)
        self.lent += self.slots.keep(outputs)
        reply = {"ms": milliseconds, "compiled": len(self.loads) - before, "skeleton": self.stopwatch.skeleton}
        reply |= {"late_ms": self.stopwatch.late_ms, "launches": self.launches, "shapes": _shapes(outputs), "codes": []}
        if is_looked_at:
            reply |= self._deliver(outputs, self.sink)  # before any code of theirs can run again
            jobs = (theirs.codes_of, returned, aliases, self.model), (theirs.forget, returned)
            reply |= {"settled": self.stopwatch.settled, "codes": self.outside.run_all(*jobs)[0]}
        return reply

    def _lend(self, skeletons: list[Any], tensors: list[Tensor]) -> list[Any]:
        """Arrange tensors as the arguments of a call; the lists among them are taken back when it is over."""
        inputs = [unflatten(skeleton, tensors) for skeleton in skeletons]
        self.lent.append(inputs)
        return inputs

    def _forward(self, inputs: list[Any], *, timed: bool = True) -> Callable[[], Any]:
        """Prepare one forward pass, which knows nothing but the model and its inputs."""
        scope = self.profiler.call(counts=timed) if self.profiler.on else self.no_scope
        return functools.partial(theirs.forwarded, self.model, inputs, scope)

    def _without_gradients(self, *jobs: Job) -> list[Any]:
        """Do jobs on the candidate's thread, one right after the other, count their launches, let go of `spent`."""
        grad, take, settle = torch._C._set_grad_enabled, self.launcher.take, self.guard.settle
        spent, self.spent = self.spent, []
        ends = ((grad, True), (take,), (theirs.forget, *spent))
        done = self.outside.run_all((take,), (grad, False), *jobs, *ends)
        results, self.launches = done[2 : -len(ends)], done[-2]
        for (function, *_), result in zip(jobs, results, strict=True):
            if function is settle:
                self.guard.settled(result)
        self.outside.collects = True  # `settle` has switched it off, and has told if it was off before
        return results

    def preload(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Copy the sets of inputs of the burst that follows to the device."""
        source = self.segments[message["source"]]
        self.outside.run(theirs.forget, *self.sets, *self.results)
        self.sets, self.results = [], []
        for specs in message["sets"]:
            tensors = source.read(specs_from(specs, source.size), self.device)
            self.sets.append([unflatten(skeleton, tensors) for skeleton in self.skeletons])
        self.sync()
        return {}

    def burst(self, _message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Make one timed call on each preloaded set, while the judge looks at its own clock."""
        calls = map(self._forward, self.sets)
        mark = (self.write, fds[0], MARK) if fds else None
        self.results, checksums = self.stopwatch.burst(calls, self._without_gradients, mark)
        close_all(fds)
        return {"checksums": checksums}

    def snapshot(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Deliver the outputs of one of the calls of the last burst."""
        outputs = self.results[message["index"]]
        codes = self.outside.run(integrity.output_codes, outputs, ())
        reply = {"codes": codes, "launches": [], "skeleton": flatten(list(outputs), [])}
        return reply | self._deliver(outputs, self.segments[message["sink"]])

    def _read(self, message: dict[str, Any], device: str) -> list[Tensor]:
        segment = self.segments[message["source"]]
        return segment.read(specs_from(message["tensors"], segment.size), device)

    def _deliver(self, outputs: list[Tensor], sink: Segment | None) -> dict[str, Any]:
        """Put outputs into the judge's memory, and say where; none if they do not fit."""
        assert sink is not None
        specs, size = layout(outputs)
        if size > sink.size:
            return {"shapes": _shapes(outputs), "tensors": None}
        sink.write(specs, outputs)
        return {"shapes": _shapes(outputs), "tensors": [list(spec) for spec in specs]}


def _shapes(outputs: list[Tensor]) -> list[list[Any]]:
    return [[str(output.dtype).removeprefix("torch."), list(output.shape)] for output in outputs]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _hide() -> None:
    """Keep the harness out of the candidate's way: not among the modules, nor among the objects that gc lists."""
    sys.modules["__main__"] = types.ModuleType("__main__")
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

    import torch._inductor.config

    tempfile.tempdir = plan.workdir  # the zygote's cached value lies outside
    torch._inductor.config.compile_threads = 1  # its helpers would be processes that the candidate leaves running
    channel = Channel(socket.socket(fileno=conn))
    key = bytes.fromhex(channel.receive(None)[0]["key"])
    if device == "cuda":
        torch.zeros(1, device="cuda")
    harness = Harness(channel, key, device, plan.workdir)
    _hide()
    try:
        harness.speak({"ok": True, "isolation": active})
        harness.serve()
    except (WireClosed, OSError):  # the judge has gone
        return
