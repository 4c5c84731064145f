"""Artefact: what a judge measured, in the raw, so that others can compute from it again without a device.

It travels packed (JSON under zlib) beside an evaluation, and never in its document.
"""

import json
import zlib

from pydantic import Field

from drkernel_q.value import Value

#: Bytes of compressed artefacts from which on what can be spared is left out; `Artefacts.dropped` says so.
MAX_BYTES = 64 * 1024
#: Most raw rows of a profile, and characters of a name.
MAX_ROWS, MAX_NAME = 200, 200
#: What is left out first when there is too much; times of blocks always stay.
_DROPPABLE = ("profile", "kernel_names", "seeds", "bursts", "late_ms")


class Burst(Value):
    """One burst of calls by the judge's own clock."""

    side: str
    """`candidate`, or `empty` for calls of nothing."""
    calls: int
    seconds: float
    gaps_ms: tuple[float, ...] = ()
    """From the end of one call to that of the next, flush and spin included; on a device alone."""


class ProfileRow(Value):
    """Device activity of one kind, summed over the profiled calls, as the candidate's process recorded it."""

    name: str
    operator: str | None
    """Operator that launched it."""
    device_us: float
    times: int
    memory: bool = False
    """Whether it is a copy or a fill."""
    graph: bool = False
    """Whether it came from a CUDA graph."""
    threads: int | None = None
    """Threads of a block."""
    registers: int | None = None
    """Registers of a thread."""


class Artefacts(Value):
    """Raw measurements of one evaluation. Sides are the baselines by name, and `candidate`."""

    blocks: dict[str, tuple[tuple[float, ...], ...]] = Field(default_factory=dict)
    """Milliseconds of each timed call by side, in blocks; block i of every side lay beside the others'."""
    late_ms: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """By side: milliseconds that the device went on working after the last event of each call, warm-up included."""
    bursts: tuple[Burst, ...] = ()
    seeds: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """By what they were for (`weights`, `timed` and so on), known to nobody while the candidate ran."""
    kernel_names: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Triton functions of the candidate that ran, by phase: `checked`, `timed`, `profiled`."""
    profile: tuple[ProfileRow, ...] = ()
    dropped: dict[str, int] = Field(default_factory=dict)
    """How many items of a field were left out for want of room."""


def pack(artefacts: Artefacts) -> bytes:
    """Compress to about `MAX_BYTES` at most; what has to go is counted in `dropped`."""
    kept = _capped(artefacts)
    packed = _compressed(kept)
    for name in _DROPPABLE:
        if len(packed) <= MAX_BYTES:
            break
        kept = _without(kept, name)
        packed = _compressed(kept)
    return packed


def unpack(packed: bytes) -> Artefacts:
    """Undo `pack`.

    Raises:
        ValueError: it is nothing that `pack` made.
    """
    try:
        return Artefacts.model_validate_json(zlib.decompress(packed))
    except zlib.error as error:
        raise ValueError(f"these are no packed artefacts: {error}") from error


def _compressed(artefacts: Artefacts) -> bytes:
    """Write floats with nine digits, which is all of a 32-bit float and half the bytes of a double."""
    shortened = _shortened(artefacts.model_dump(mode="json", exclude_defaults=True))
    return zlib.compress(json.dumps(shortened, separators=(",", ":")).encode(), 9)


def _shortened(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list) else value


def _capped(artefacts: Artefacts) -> Artefacts:
    """Shorten the profile, whose rows a candidate can make as many and as long as it likes."""
    rows = sorted(artefacts.profile, key=lambda row: -row.device_us)
    short = tuple(_short(row) for row in rows[:MAX_ROWS])
    left_out = len(rows) - len(short)
    dropped = artefacts.dropped | ({"profile": left_out} if left_out else {})
    return artefacts.model_copy(update={"profile": short, "dropped": dropped})


def _short(row: ProfileRow) -> ProfileRow:
    operator = None if row.operator is None else row.operator[:MAX_NAME]
    return row.model_copy(update={"name": row.name[:MAX_NAME], "operator": operator})


def _without(artefacts: Artefacts, name: str) -> Artefacts:
    emptied: dict[str, tuple[object, ...]] | tuple[object, ...] = getattr(artefacts, name)
    items = list(emptied.values()) if isinstance(emptied, dict) else [emptied]
    count = sum(map(len, items)) + artefacts.dropped.get(name, 0)
    dropped = artefacts.dropped | ({name: count} if count else {})
    return artefacts.model_copy(update={name: type(emptied)(), "dropped": dropped})
