"""Sides: the reference, timed in the judge, and the candidate, timed in its own process, a call at a time."""

import functools
import secrets
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

from torch import Tensor

from drkernel_q.correctness import Precision
from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Baseline
from workers.comparison.measure import outline
from workers.comparison.recheck import FULL, Recheck
from workers.comparison.reference import Reference
from workers.exchange import integrity
from workers.exchange.segment import Segment, create
from workers.exchange.shared import ALIGN, unflatten
from workers.exchange.stopwatch import Stopwatch
from workers.judging import probe
from workers.judging.answer import Answer
from workers.judging.clock import Pace
from workers.judging.session import Session, pack_inputs
from workers.judging.structure import same_scalars

#: What the candidate is compared with: a baseline, and the arithmetic of its products.
Version = tuple[Baseline, Precision]
#: Buffers that inputs and outputs of timed calls take turns over, and their bytes at most: where a tensor lies decides
#: up to half a percent of a call's time, and one place would be the same in all calls of a process.
SLOTS = 8
SLOT_BYTES = 2 * 2**30
#: Of so many timed calls one has its outputs compared, the process not knowing which; all of the first have.
LOOKED_AT = {"cuda": 4, "cpu": 1}
#: Most bytes of inputs of one burst, and of a call between timed ones whose outputs are compared in full.
BURST_BYTES = 8 * 2**30
SURPRISE_BYTES = 2**29


class Side(Protocol):
    """Something whose calls can be timed."""

    def timed(self) -> float:
        """Draw fresh inputs and time one call on them, milliseconds."""
        ...

    def interrupt(self) -> None:
        """Do what may come between two timed calls."""
        ...


def _slots_for(size_bytes: int) -> int:
    return max(min(SLOTS, SLOT_BYTES // max(size_bytes, 1)), 1)


class ReferenceSide:
    """One version of the reference, timed in the judge as the candidate is timed in its process."""

    def __init__(self, reference: Reference, version: Version, stopwatch: Stopwatch) -> None:
        """Allocate input buffers."""
        self.reference = reference
        self.version = version
        self.stopwatch = stopwatch
        first, size = pack_inputs(reference.inputs(secrets.randbits(63)))[1::2]
        self.slots = [[tensor.clone() for tensor in first] for _ in range(_slots_for(size))]
        self.slot = 0
        self.recent: deque[list[Tensor]] = deque(maxlen=len(self.slots) - 1)
        """Outputs that are kept for a while, so that the next ones come to lie elsewhere."""
        self.late_ms: list[float] = []

    def timed(self) -> float:
        """Draw fresh inputs and time one call on them, milliseconds."""
        self.slot = (self.slot + 1) % len(self.slots)
        skeletons, fresh, _, _ = pack_inputs(self.reference.inputs(secrets.randbits(63)))
        tensors = self.slots[self.slot]
        for tensor, new in zip(tensors, fresh, strict=True):
            tensor.copy_(new)
        values = [unflatten(skeleton, tensors) for skeleton in skeletons]
        call = functools.partial(self.reference.run, values, *self.version)
        milliseconds, outputs = self.stopwatch.time(call, is_looked_at=False)
        self.recent.append(outputs)
        self.late_ms.append(self.stopwatch.late_ms)
        return milliseconds

    def interrupt(self) -> None:
        """Do nothing: whom one trusts one need not surprise."""


class CandidateSide:
    """The candidate, timed by its harness.

    The inputs of a call come to lie where the candidate's process can read them right before the call, and no sooner.
    Its outputs are copied out at the end of the call, whether they will be looked at or not.
    """

    def __init__(self, session: Session, reference: Reference) -> None:
        """Show the candidate's process where inputs will appear."""
        self.session = session
        self.reference = reference
        inputs = reference.inputs(secrets.randbits(63))
        self.expected_like = outline(reference.expected(inputs))
        self.skeletons, _, self.specs, self.size = pack_inputs(inputs)
        self.segment = create(self.size, reference.device, ours=True)
        session.arm(self.segment, self.skeletons, self.specs, _slots_for(self.size), self.expected_like)
        self.sets: Segment | None = None
        self.recheck = Recheck(reference)
        self.seeds: dict[str, list[int]] = {"timed": [], "bursts": [], "surprises": []}
        """Seeds of the inputs of all calls, in order."""
        self.calls: list[Answer] = []
        """What came with each timed call, without the outputs."""
        self.warm = 0
        """How many of them were made to warm up."""
        self.surprises: list[Answer] = []
        """The same of calls between them."""
        self.unusual: Sequence[probe.Recipe] = ()
        """Inputs that no timed call gets, and on which the checked process was right."""

    def timed(self) -> float:
        """Draw fresh inputs and time one call on them, milliseconds, as the candidate's process claims."""
        self.seeds["timed"].append(secrets.randbits(63))
        inputs = self._put(self.segment, 0, self.reference.inputs(self.seeds["timed"][-1]))
        looked_at = len(self.calls) < FULL or not secrets.randbelow(LOOKED_AT[self.reference.device])
        milliseconds, answer = self.session.timed(self.expected_like, is_looked_at=looked_at)
        if looked_at:
            self._look(inputs, answer)
        self.calls.append(answer._replace(outputs=None))
        return milliseconds

    def interrupt(self) -> None:
        """Make a call as if it were timed, on inputs as only checks have them, and compare its outputs in full.

        Its process cannot tell, so it has to be right on such inputs whenever it is timed. They are those of a check:
        who is right there and not here does something else when he is timed, and is not merely imprecise.
        """
        if not self.unusual or self.size > SURPRISE_BYTES:
            return
        recipe = secrets.choice(self.unusual)
        moved = recipe.change_of(self.reference.inputs(recipe.inputs))
        assert moved is not None
        self.seeds["surprises"].append(recipe.inputs)
        self._put(self.segment, 0, moved)
        _, answer = self.session.timed(self.expected_like)
        if answer.outputs is None:
            self.recheck.faults.append(answer.detail or "an output of another kind")
        else:
            self.recheck.look_closely(moved, answer.outputs)
        self.surprises.append(answer._replace(outputs=None))

    def _put(self, segment: Segment, offset: int, inputs: Sequence[Any]) -> Sequence[Any]:
        _, tensors, specs, _ = pack_inputs(inputs)
        if specs != self.specs:
            raise BadProblem(f"get_inputs() of {self.reference.name} draws other shapes under another seed.")
        segment.write([spec._replace(offset=spec.offset + offset) for spec in specs], tensors)
        return inputs

    def _look(self, inputs: Sequence[Any], answer: Answer) -> None:
        if answer.outputs is None:
            self.recheck.faults.append(answer.detail or "an output of another kind")
            return
        self.recheck.look(inputs, answer.outputs)
        if answer.scalars and not same_scalars(answer.scalars, self.reference.expected(inputs)):
            self.recheck.faults.append("a number beside the tensors is not the reference's")

    @property
    def most_calls(self) -> int:
        """Longest burst that the sets of inputs leave room for."""
        return BURST_BYTES // max(self.size, 1)

    def burst(self, calls: int) -> Pace:
        """Let the candidate make timed calls on fresh inputs in a row; return how long they took by the judge's clock.

        With its reply the process commits itself to all outputs by their checksums; those of one call, chosen only
        then, are fetched and looked at.
        """
        stride = -(-self.size // ALIGN) * ALIGN
        if self.sets is None or self.sets.size < stride * calls:
            self.sets = create(stride * calls, self.reference.device, ours=True)
        seeds = [secrets.randbits(63) for _ in range(calls)]
        self.seeds["bursts"] += seeds
        for number, seed in enumerate(seeds):
            self._put(self.sets, stride * number, self.reference.inputs(seed))
        places = [
            [spec._replace(offset=spec.offset + stride * number) for spec in self.specs] for number in range(calls)
        ]
        self.session.preload(self.sets, places)
        pace, checksums = self._timed_burst()
        chosen = secrets.randbelow(calls)
        answer = self.session.snapshot(self.expected_like, chosen)
        promised = checksums[chosen] if len(checksums) == calls else ()
        if tuple(map(integrity.checksum, answer.outputs or ())) != promised:
            self.recheck.faults.append("the outputs are others than those that the process committed itself to")
        self._look(self.reference.inputs(seeds[chosen]), answer)
        if pace.gaps_ms and len(pace.gaps_ms) != calls:
            self.recheck.faults.append(f"{len(pace.gaps_ms)} calls of a burst of {calls} were said to be over")
        return pace

    def _timed_burst(self) -> tuple[Pace, list[tuple[int, ...]]]:
        """Let the process make its calls; return the time that they can have taken, and the checksums.

        Where cores do the work, others may have had them meanwhile, and nobody works longer than on a core.
        """
        start, begun_s = time.perf_counter(), self.session.remote.worked_s()
        checksums, moments = self.session.burst()
        passed_s, worked_s = time.perf_counter() - start, self.session.remote.worked_s()
        if self.reference.device != "cpu" or begun_s is None or worked_s is None:
            return Pace(passed_s, tuple(1e3 * (end - begin) for begin, end in pairwise(moments))), checksums
        return Pace(min(passed_s, worked_s - begun_s)), checksums

    def close(self) -> None:
        """Give back the memory that was shared."""
        for segment in (self.segment, self.sets):
            if segment is not None:
                segment.close()
