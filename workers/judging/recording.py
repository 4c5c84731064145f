"""Recording: what a candidate's process claims to have recorded of its device, read with care."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from workers.exchange.trace import Overlap, Row, Span, Trace
from workers.judging.attribution import Identity
from workers.judging.claim import claimed_text

#: Names that functions of Python can have, and so those of Triton.
_FUNCTION = re.compile(r"[^\W\d]\w*")


class Recording(NamedTuple):
    """What the device did in the profiled calls, and the kernels that the candidate can have launched."""

    trace: Trace = Trace()
    compiled: frozenset[Identity] = frozenset()
    """Kernels compiled from Triton functions of the candidate's file."""
    built: frozenset[Identity] = frozenset()
    """Kernels in shared objects that lie in the candidate's folder and are loaded: CUDA C++."""


def read_recording(reply: Mapping[str, Any]) -> Recording:
    """Read a reply of the harness.

    Raises:
        LookupError, TypeError, ValueError: it is broken.
    """
    fault = reply["fault"]
    trace = Trace(
        rows=tuple(_row(*row) for row in reply["rows"]),
        spans=tuple(_span(*span) for span in reply["spans"]),
        fault=None if fault is None else claimed_text(fault),
        others=tuple(_row(*row) for row in reply["others"]),
        overlaps=tuple(_overlap(*overlap) for overlap in reply["overlaps"]),
    )
    compiled = (Identity(claimed_text(name), _count(threads), _count(regs)) for name, threads, regs in reply["own"])
    compiled = (each for each in compiled if _FUNCTION.fullmatch(each.name) and each.registers)
    built = (Identity(claimed_text(name), None, _count(regs)) for name, regs in reply["built"])
    return Recording(trace, frozenset(compiled), frozenset(built))


def _row(name: Any, operator: Any, us: Any, times: Any, memory: Any, graph: Any, threads: Any, registers: Any) -> Row:
    return Row(
        claimed_text(name),
        None if operator is None else claimed_text(operator),
        _microseconds(us),
        int(times),
        memory is True,
        graph is True,
        None if threads is None else _count(threads),
        None if registers is None else _count(registers),
    )


def _span(window_us: Any, busy_us: Any, early_us: Any, streams: Any) -> Span:
    return Span(_microseconds(window_us), _microseconds(busy_us), _microseconds(early_us), _count(streams))


def _overlap(name: Any, other: Any, us: Any) -> Overlap:
    return Overlap(claimed_text(name), claimed_text(other), _microseconds(us))


def _microseconds(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{number} us")
    return number


def _count(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 2**31:
        raise ValueError(f"a count of {number}")
    return number
