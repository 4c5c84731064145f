"""Session: the typed conversation between judge and one candidate process."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from drkernel_q.errors import TimedOut
from workers.comparison.measure import Expected
from workers.comparison.reference import Reference
from workers.exchange.segment import Segment, create
from workers.exchange.shared import TensorSpec, flatten, layout
from workers.judging.answer import Answer, read_answer
from workers.judging.claim import claimed_text, number, reading
from workers.judging.recording import Recording, read_recording
from workers.judging.remote import RemoteCandidate

#: From this size on, the judge gives cached device memory back before the candidate runs, bytes.
LARGE_BYTES = 2**30
#: Patterns that memory is poisoned with in turn: NaN for every float, and a large finite number.
POISON = (0xFF, 0x4B)
#: No call takes less, milliseconds: a shorter claim is nonsense, and would make a speedup that is no number.
SHORTEST_MS = 1e-5


def pack_inputs(values: Sequence[Any]) -> tuple[list[Any], list[Tensor], list[TensorSpec], int]:
    """Return skeletons, tensors, their places and the bytes they need."""
    tensors: list[Tensor] = []
    skeletons = [flatten(value, tensors) for value in values]
    specs, size = layout(tensors)
    return skeletons, tensors, specs, size


class Session:
    """One candidate process that has been given its source."""

    def __init__(
        self,
        take: Callable[[], RemoteCandidate],
        device: str,
        deadline_s: float,
        left_s: Callable[[], float],
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Speak to a fresh process that `take` gives.

        A request has `deadline_s`, and at most what `left_s` says is left of the evaluation. `between` is called before
        each, when the process has nothing to do.
        """
        self.remote = take()
        self.device = device
        self._take_remote = take
        self._text, self._tf32 = "", False
        self._fault: str | None = None
        self.longest_s = deadline_s
        self.is_judged = True
        """Whether a fault of the process is one of the evaluation's, and not of an attempt that decides nothing."""
        self._left_s = left_s
        self._between = between
        self._calls = 0
        self._is_ahead = False
        self._source: Segment | None = None
        self._sink: Segment | None = None

    def close(self) -> None:
        """End the process with all it made, and give back the memory that was shared."""
        self.remote.close()
        for segment in (self._source, self._sink):
            _close(segment)
        self._source = self._sink = None

    @property
    def fault(self) -> str | None:
        """The first fault of the process, or of one that it took the place of (`workers.isolation.fault`)."""
        return self._fault or self.remote.fault

    def renew(self, reference: Reference, *, whatever: bool = False) -> None:
        """Go on after a failure that decides nothing: if it cost the process its life or context, another takes over.

        So it does `whatever` it cost where the failure may have left more behind than can be seen.

        Raises:
            CandidateFailed: the source cannot be loaded or built again.
        """
        if not (self.remote.is_lost or (whatever and self.device == "cuda")):
            return
        self._fault = self.fault
        self.close()
        self.remote = self._take_remote()
        self.load(self._text, tf32=self._tf32)
        self.build(reference, reference.seed)

    @property
    def deadline_s(self) -> float:
        """Seconds that the next request may take.

        Raises:
            TimedOut: the evaluation's own time is over; it was not this request that used it up.
        """
        left_s = self._left_s()
        if left_s <= 0:
            raise TimedOut("The deadline of the evaluation is over; a longer one may be given by --deadline.")
        return min(self.longest_s, left_s)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Let requests be begun and not waited for while the context lasts, so that the process works by itself."""
        self._is_ahead = True
        try:
            yield
        finally:
            self._is_ahead = False

    def load(self, source: str, *, tf32: bool = False) -> None:
        """Import the source, where torch's own products may be `tf32`.

        Raises:
            CandidateFailed: it cannot be imported, or defines no `ModelNew`.
        """
        self._text, self._tf32 = source, tf32
        self._ask("load", {"source": source, "tf32": tf32})

    def build(self, reference: Reference, seed: int) -> str:
        """Make `ModelNew` for the weights that `reference` was last built with; return what became of the state."""
        state = {name: value.detach() for name, value in reference.model.state_dict().items()}
        tensors: list[Tensor] = []
        arguments = flatten(list(reference.init_args), tensors)
        message = {"seed": seed, "train": reference.train, "arguments": arguments, "state": list(state)}
        return str(self._ask("build", message | self._put([*tensors, *state.values()])).get("weights"))

    def adopt(self, reference: Reference) -> str:
        """Load the reference's present state into the model that there is; return what became of it."""
        state = {name: value.detach() for name, value in reference.model.state_dict().items()}
        reply = self._ask("adopt", {"state": list(state)} | self._put(list(state.values())))
        return str(reply.get("weights"))

    def replace(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[bool]:
        """Make weights that are the first of a pair the second, whatever their names; say of which there were any."""
        reply = self._ask("replace", self._put([tensor.detach() for pair in pairs for tensor in pair]))
        with reading("weights"):
            there = [each is True for each in reply["there"]]
        return there + [False] * (len(pairs) - len(there))

    def call(
        self,
        inputs: Sequence[Any],
        expected: Expected,
        *,
        train: bool,
        grad: bool = False,
        reuse: bool = False,
        meddle: Literal["", "ablate", "perturb"] = "",
    ) -> Answer:
        """Run one forward pass on copies of `inputs`.

        With `reuse` the contents come to lie in the tensors of the call before. `meddle` suppresses every Triton launch
        (`ablate`), or changes what launches write (`perturb`).
        """
        sink = self._take(expected)
        how = {"train": train, "grad": grad, "reuse": reuse, "meddle": meddle}
        reply = self._ask("call", how | self._order(inputs, expected, sink))
        with reading("launches"):
            seconds = number(reply["seconds"])
            written = tuple(int(value) for value in reply["written"])
            within = tuple(map(claimed_text, reply["within"]))
            mutated = tuple((claimed_text(name), is_parameter is True) for name, is_parameter in reply["mutated"])
        answer = read_answer(reply, expected, sink, self.device)
        changed = reply.get("changed") is not False
        return answer._replace(changed=changed, mutated=mutated, written=written, within=within, seconds=seconds)

    def rehearse(self, inputs: Sequence[Any], *, train: bool) -> None:
        """Run one forward pass that nobody looks at: it compiles what there is to compile.

        Where Triton has something to launch, it waits before that until `go`.
        """
        skeletons, tensors, _, _ = pack_inputs(inputs)
        order = {"inputs": skeletons, "train": train} | self._put(tensors)
        self._ask("rehearse", order, [self.remote.hold()])

    def _order(self, inputs: Sequence[Any], expected: Expected, sink: Segment) -> dict[str, Any]:
        """Put the inputs of a call where the process can read them, and say how it is to be made."""
        skeletons, tensors, _, _ = pack_inputs(inputs)
        self._calls += 1
        order = {
            "inputs": skeletons,
            "poison": POISON[self._calls % len(POISON)],
            "sizes": [tensor.numel() * tensor.element_size() for tensor in expected.working],
            "sink": sink.fd,
        }
        return order | self._put(tensors)

    def start_profile(self, *, train: bool) -> None:
        """Let the process record what its device does in the timed calls that follow, all in this mode.

        Others that are made meanwhile are recorded apart.
        """
        self._ask("profile", {"on": True, "train": train})

    def stop_profile(self) -> Recording:
        """End the recording and return it."""
        reply = self._ask("profile", {"on": False})
        with reading("profile"):
            return read_recording(reply)

    def arm(
        self,
        segment: Segment,
        skeletons: Sequence[Any],
        specs: Sequence[TensorSpec],
        slots: int,
        expected: Expected,
    ) -> None:
        """Show the process where the inputs of timed calls will appear, how many buffers take turns, and the sink."""
        self._share(segment, writable=False)
        tensors = [list(spec) for spec in specs]
        places = {"source": segment.fd, "sink": self._take(expected).fd, "tensors": tensors}
        self._ask("arm", places | {"inputs": skeletons, "slots": slots})

    def timed(self, expected: Expected, *, is_looked_at: bool = True) -> tuple[float, Answer]:
        """Time one call on the inputs that lie ready; return the milliseconds claimed, and what comes with them.

        Outputs that are not looked at are not delivered, and their codes are not asked for: both take longer than most
        calls.

        Outputs are nested, shaped and typed like those of `expected`; numbers beside them are the caller's to compare.
        """
        sink = self._take(expected)
        start = time.perf_counter()
        reply = self._ask("timed", {"looked_at": is_looked_at})
        most_ms = (time.perf_counter() - start) * 1e3
        with reading("time"):
            milliseconds = number(reply["ms"])
            if not SHORTEST_MS <= milliseconds <= most_ms:
                raise ValueError(f"{milliseconds:.3g} ms within {most_ms:.3g} ms")
            late_ms, compiled = number(reply["late_ms"]), int(reply["compiled"])
            settled = not is_looked_at or reply["settled"] is True
        answer = read_answer(reply, expected, sink, self.device, scalars=False, is_looked_at=is_looked_at)
        return milliseconds, answer._replace(late_ms=late_ms, settled=settled, compiled=compiled)

    def preload(self, segment: Segment, sets: Sequence[Sequence[TensorSpec]]) -> None:
        """Let the process copy sets of inputs to the device, for the burst that follows."""
        self._share(segment, writable=False)
        places = [[list(spec) for spec in specs] for specs in sets]
        self._ask("preload", {"source": segment.fd, "sets": places})

    def burst(self) -> tuple[list[tuple[int, ...]], list[float]]:
        """Let the process make a timed call on each preloaded set; return the checksums of each call's outputs.

        On a device there come with them the moments, in seconds of the judge's clock, at which the process said that
        it began, and that each of the calls was over.
        """
        moments: list[float] = []
        if self.device == "cpu":
            reply = self._ask("burst", {})
        else:
            with self.remote.marks() as (theirs, moments):
                reply = self._ask("burst", {}, [theirs])
        with reading("checksums"):
            return [tuple(int(value) for value in row) for row in reply["checksums"]], moments

    def snapshot(self, expected: Expected, index: int) -> Answer:
        """Take the outputs of one of the calls of the last burst, as a plain list."""
        sink = self._take(expected)
        return read_answer(self._ask("snapshot", {"sink": sink.fd, "index": index}), _flat(expected), sink, self.device)

    def _ask(self, operation: str, message: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        if self._is_ahead:
            self.remote.begin(operation, message, fds, deadline_s=self.deadline_s)
            return {}
        self._between()
        return self.remote.ask(operation, message, fds, deadline_s=self.deadline_s)

    def _put(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """Put tensors where the process can read them; return how a request names them."""
        specs, size = layout(tensors)
        # What was begun may still have to read the memory that it was given.
        if self._source is None or self._source.size < size or self._is_ahead:
            old, self._source = self._source, self._share(create(size, self.device, ours=True), writable=False)
            _close(old)
        self._source.write(specs, tensors)
        if self.device == "cuda" and size > LARGE_BYTES:
            torch.cuda.empty_cache()  # what the judge has cached, the candidate cannot have
        return {"source": self._source.fd, "tensors": [list(spec) for spec in specs]}

    def _take(self, expected: Expected) -> Segment:
        """Return memory that the process can write outputs like `expected` to."""
        _, size = layout(expected.working)
        if self._sink is None or self._sink.size < size:
            old, self._sink = self._sink, self._share(create(size, self.device), writable=True)
            _close(old)
        return self._sink

    def _share(self, segment: Segment, *, writable: bool) -> Segment:
        message = {"segment": segment.fd, "bytes": segment.size, "writable": writable, "on_device": segment.on_device}
        self._ask("share", message, [segment.fd])
        return segment


def _close(segment: Segment | None) -> None:
    if segment is not None:
        segment.close()


def _flat(expected: Expected) -> Expected:
    return replace(expected, skeleton=flatten(list(expected.working), []))
