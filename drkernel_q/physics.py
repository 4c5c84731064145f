"""Physics: what a device's memory and arithmetic allow, whatever a stop-watch says (D18).

Source of the figures: vendors' data sheets, dense throughput; of several variants of a device the fastest.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from drkernel_q.audit import Audit
from drkernel_q.correctness import Precision
from drkernel_q.evaluation import Evaluation
from drkernel_q.observation import Evidence, Observations, Weight


class Peak(NamedTuple):
    """The most that a device can do."""

    bandwidth: float
    """Bytes a second of its memory."""
    cache_bytes: int
    """Last-level cache: what fits into it may never reach memory."""
    tf32: float
    """Floating-point operations a second with fp32 operands, TF32 products being the fastest way to make them."""
    half: float
    """The same with operands in fp16 or bf16."""


#: By a part of the device's name.
PEAKS: Mapping[str, Peak] = {
    "B200": Peak(8.0e12, 126 * 2**20, 1.2e15, 2.5e15),
    "H200": Peak(4.8e12, 60 * 2**20, 4.95e14, 9.9e14),
    "H100": Peak(3.9e12, 50 * 2**20, 4.95e14, 9.9e14),
    "A100": Peak(2.04e12, 40 * 2**20, 1.56e14, 3.12e14),
    "L40S": Peak(0.864e12, 96 * 2**20, 1.83e14, 3.66e14),
    "RTX 4090": Peak(1.008e12, 72 * 2**20, 0.83e14, 3.3e14),
}
#: Share of the shortest time below which a claim is not believed.
SLACK = 0.5


def check(evaluation: Evaluation, observed: Observations, audit: Audit | None) -> Iterator[Evidence]:
    """Hold the time of a call against what memory and arithmetic allow.

    Every kernel has to write the outputs and to read what an audit found to matter. Not every kernel has to do the
    operations that the reference does: to do fewer may be the whole point, so that is only written down.
    """
    peak = next((peak for name, peak in PEAKS.items() if name in evaluation.environment.device_name), None)
    if evaluation.timing is None or peak is None:
        return
    claimed_ms = evaluation.timing.candidate_ms
    moved_ms = moving_ms(peak, max((audit and audit.bytes_least) or 0, observed.bytes_least or 0))
    if claimed_ms < SLACK * moved_ms:
        detail = f"a call of {claimed_ms:.3g} ms would move its data faster than memory can ({moved_ms:.3g} ms)"
        yield Evidence(code="D18", weight=Weight.SOFT, detail=detail)
    computed_ms = computing_ms(peak, (audit and audit.flops) or 0, _precision(evaluation))
    if claimed_ms < SLACK * computed_ms:
        detail = (
            f"the reference's own operations would take {computed_ms:.3g} ms at least, a call takes {claimed_ms:.3g}"
        )
        yield Evidence(code="G4", weight=Weight.NOTE, detail=detail)


def moving_ms(peak: Peak, size_bytes: int) -> float:
    """Return the milliseconds that memory takes at least for so many bytes."""
    return max(size_bytes - peak.cache_bytes, 0) / peak.bandwidth * 1e3


def computing_ms(peak: Peak, operations: int, precision: Precision) -> float:
    """Return the milliseconds that so many floating-point operations take at least."""
    return operations / (peak.half if precision.is_below(Precision.TF32) else peak.tf32) * 1e3


def _precision(evaluation: Evaluation) -> Precision:
    """Return the class of the candidate's products; operands may be half precision in the problem itself."""
    shown = evaluation.correctness.precision_class if evaluation.correctness else None
    return Precision.TF32 if shown in ("exact", "fp64", "fp32", "tf32") else Precision.FP16
