"""Session: the typed conversation between judge and one candidate process."""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drkernel_q.evaluation import Outcome
from workers.correctness import Expected
from workers.profiling import Row
from workers.reference import Reference
from workers.remote import CandidateFailed, RemoteCandidate
from workers.shared import Segment, TensorSpec, flatten, layout, shape_of, specs_from


class Answer(NamedTuple):
    """What one forward call gave."""

    outputs: list[Tensor] | None
    """Copies of the outputs on the judge's device; None when they are of another kind than the reference's."""
    outcome: Outcome
    """Correct as far as structure, shapes and dtypes go, or what is wrong with them."""
    detail: str | None
    codes: tuple[str, ...]
    """Codes of `workers.integrity.OUTPUT_RULES` and `E1` that the harness saw."""
    changed: bool = False
    """Whether the inputs were written to."""
    own_launches: int = 0
    """Launches of Triton functions of the candidate's file."""
    other_launches: int = 0
    """Launches of other Triton functions."""
    seconds: float = 0.0


def pack_inputs(values: Sequence[Any]) -> tuple[list[Any], list[Tensor], list[TensorSpec], int]:
    """Return skeletons, tensors, their places and the bytes they need."""
    tensors: list[Tensor] = []
    skeletons = [flatten(value, tensors) for value in values]
    specs, size = layout(tensors)
    return skeletons, tensors, specs, size


class Session:
    """One candidate process that has been given its source."""

    def __init__(self, remote: RemoteCandidate, device: str, deadline_s: float, ends_at: float) -> None:
        """Speak to `remote`; a request has `deadline_s`, and all of them end at `ends_at` (monotonic clock)."""
        self.remote = remote
        self.device = device
        self.longest_s = deadline_s
        self.ends_at = ends_at

    @property
    def deadline_s(self) -> float:
        """Seconds that the next request may take."""
        return max(min(self.longest_s, self.ends_at - time.monotonic()), 0.05)

    def load(self, source: str) -> None:
        """Import the source.

        Raises:
            CandidateFailed: it cannot be imported, or defines no `ModelNew`.
        """
        self.remote.ask("load", {"source": source}, deadline_s=self.deadline_s)

    def build(self, reference: Reference, seed: int) -> str:
        """Make `ModelNew` for the weights that `reference` was last built with; return what became of the state."""
        state = {name: value.detach() for name, value in reference.model.state_dict().items()}
        tensors: list[Tensor] = []
        arguments = flatten(list(reference.init_args), tensors)
        tensors += list(state.values())
        specs, size = layout(tensors)
        segment = Segment.create(size, ours=True)
        segment.write(specs, tensors)
        message = {
            "seed": seed,
            "train": reference.train,
            "arguments": arguments,
            "state": list(state),
            "tensors": [list(spec) for spec in specs],
        }
        try:
            return str(self.remote.ask("build", message, [segment.fd], deadline_s=self.deadline_s).get("state"))
        finally:
            segment.close()

    def call(self, inputs: Sequence[Any], expected: Expected, *, train: bool, grad: bool = False) -> Answer:
        """Run one forward pass on copies of `inputs`."""
        skeletons, tensors, specs, size = pack_inputs(inputs)
        source = Segment.create(size, ours=True)
        source.write(specs, tensors)
        sink, capacity = _sink(expected)
        message = {
            "inputs": skeletons,
            "tensors": [list(spec) for spec in specs],
            "train": train,
            "grad": grad,
            "capacity": capacity,
        }
        try:
            reply = self.remote.ask("call", message, [source.fd, sink.fd], deadline_s=self.deadline_s)
            answer = self._answer(reply, expected, sink)
        finally:
            source.close()
            sink.close()
        own, other = _launches(reply.get("launches"))
        return answer._replace(
            changed=reply.get("changed") is not False,
            own_launches=own,
            other_launches=other,
            seconds=_number(reply.get("seconds")),
        )

    def profile(self, inputs: Sequence[Any], calls: int) -> tuple[list[Row], set[str]]:
        """Profile `calls` forward passes; return device activity and the names of the candidate's own kernels."""
        skeletons, tensors, specs, size = pack_inputs(inputs)
        source = Segment.create(size, ours=True)
        source.write(specs, tensors)
        message = {"inputs": skeletons, "tensors": [list(spec) for spec in specs], "calls": calls}
        try:
            reply = self.remote.ask("profile", message, [source.fd], deadline_s=self.deadline_s)
        finally:
            source.close()
        try:
            rows = [Row(str(n), None if o is None else str(o), _number(t), int(c)) for n, o, t, c in reply["rows"]]
            return rows, {str(name) for name in reply["own"]}
        except (KeyError, TypeError, ValueError) as error:
            raise CandidateFailed(Outcome.CRASHED, "the profile that the process reported is nonsense") from error

    def arm(self, segment: Segment, skeletons: Sequence[Any], specs: Sequence[Sequence[TensorSpec]]) -> None:
        """Show the process where the inputs of timed calls will appear."""
        pairs = zip(skeletons, specs, strict=True)
        sets = [{"inputs": inputs, "tensors": [list(spec) for spec in places]} for inputs, places in pairs]
        self.remote.ask("arm", {"bytes": segment.size, "sets": sets}, [segment.fd], deadline_s=self.deadline_s)

    def timed(self, index: int) -> float:
        """Time one call on input set `index`; return the milliseconds that the process claims."""
        reply = self.remote.ask("timed", {"set": index}, deadline_s=self.deadline_s)
        milliseconds = _number(reply.get("ms"))
        if milliseconds <= 0:
            raise CandidateFailed(Outcome.CRASHED, "the time that the process reported is nonsense")
        return milliseconds

    def snapshot(self, expected: Expected) -> Answer:
        """Take the outputs of the last timed call."""
        sink, capacity = _sink(expected)
        try:
            reply = self.remote.ask("snapshot", {"capacity": capacity}, [sink.fd], deadline_s=self.deadline_s)
            outputs = _flat(expected)
            return self._answer(reply, outputs, sink)
        finally:
            sink.close()

    def _answer(self, reply: dict[str, Any], expected: Expected, sink: Segment) -> Answer:
        codes = tuple(str(code) for code in reply.get("codes") or ())
        try:
            fault = _structure_fault(reply, expected)
            if fault is not None:
                return Answer(None, *fault, codes)
            specs = specs_from(reply["tensors"], sink.size)
            for spec, working in zip(specs, expected.working, strict=True):
                if (spec.dtype, spec.shape) != (_name(working.dtype), list(working.shape)):
                    raise ValueError("places that do not fit the shapes")
            return Answer(sink.read(specs, self.device), Outcome.CORRECT, None, codes)
        except (KeyError, TypeError, ValueError) as error:
            raise CandidateFailed(
                Outcome.CRASHED, f"the outputs that the process reported are nonsense: {error}"
            ) from error


def _sink(expected: Expected) -> tuple[Segment, int]:
    _, capacity = layout(expected.working)
    return Segment.create(capacity), capacity


def _flat(expected: Expected) -> Expected:
    """Return `expected` as the plain list of outputs that a snapshot is."""
    return expected._replace(skeleton=flatten(list(expected.working), []))


def _structure_fault(reply: dict[str, Any], expected: Expected) -> tuple[Outcome, str] | None:
    """Compare nesting, shapes and dtypes with the reference's; return what is wrong."""
    if {"D3", "C11"} & set(reply["codes"]):
        return Outcome.RUNTIME_ERROR, "ModelNew returned something else than plain dense tensors"
    if shape_of(reply["skeleton"]) != shape_of(expected.skeleton):
        return Outcome.WRONG_SHAPE, "the outputs are nested or counted otherwise than the reference's"
    shapes = [(str(dtype), [int(size) for size in shape]) for dtype, shape in reply["shapes"]]
    if len(shapes) != len(expected.working):
        raise ValueError("more or fewer shapes than outputs")
    pairs = list(zip(shapes, expected.working, strict=True))
    for (_, shape), working in pairs:
        if shape != list(working.shape):
            return Outcome.WRONG_SHAPE, f"expected shape {list(working.shape)}, got {shape}"
    for (dtype, _), working in pairs:
        if dtype != _name(working.dtype):
            return Outcome.WRONG_DTYPE, f"expected dtype {_name(working.dtype)}, got {dtype}"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _launches(rows: Any) -> tuple[int, int]:
    own = other = 0
    try:
        for _, is_own, count in rows:
            if is_own is True:
                own += int(count)
            else:
                other += int(count)
    except (TypeError, ValueError):
        return 0, 0
    return own, other


def _number(value: Any) -> float:
    number = float(value) if isinstance(value, int | float) else 0.0
    return number if math.isfinite(number) and number > 0 else 0.0
