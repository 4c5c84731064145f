"""Baseline: how fast compiled references are against the first baseline, measured once for a problem and a machine.

To compile a reference and to autotune it takes seconds to minutes. An evaluation that has done so keeps the ratio of
the two times, which lay beside each other, and later ones need no compiler. Candidates can neither read nor write it.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from drkernel_q.environment import Environment
from drkernel_q.evaluation import PROTOCOL_VERSION, Baseline, BaselineTiming, side_name
from drkernel_q.problem import Problem
from drkernel_q.speedup import Blocks, speedup_interval
from drkernel_q.value import Value, content_hash
from workers.judging import timing
from workers.judging.side import CandidateSide, Version
from workers.judging.timing import Lineup, Race


class Ratio(Value):
    """Time of the first baseline over that of another, with its 95 % interval."""

    ratio: float
    low: float
    high: float


class Alone(Value):
    """Time of a baseline when no candidate is there."""

    milliseconds: float


class Remembered(NamedTuple):
    """What was measured of one problem's baselines on one machine, kept as files of a folder of the judge's."""

    folder: Path
    key: tuple[str, ...]
    """Everything that decides them but for the two baselines."""

    @classmethod
    def of(cls, folder: Path, problem: Problem, environment: Environment, mode: str) -> "Remembered":
        """Name what is remembered of `problem`, on the kind of device and with the versions of `environment`."""
        versions = (environment.torch, environment.triton, environment.driver or "", PROTOCOL_VERSION)
        return cls(folder, (problem.hash, environment.device_kind, *versions, mode))

    def find(self, first: Version, other: Version) -> Ratio | None:
        """Return the ratio of two versions; None if it has not been measured."""
        try:
            return Ratio.model_validate_json(self._path(first, other).read_bytes())
        except (OSError, ValidationError):
            return None

    def keep(self, first: Version, other: Version, times: tuple[Blocks, Blocks]) -> None:
        """Keep the ratio of two versions from blocks of milliseconds that lay beside each other."""
        found = speedup_interval(*times)
        self._write(self._path(first, other), Ratio(ratio=found.speedup, low=found.low, high=found.high))

    def find_alone(self, version: Version) -> float | None:
        """Return the milliseconds of a version without any candidate; None if that has not been measured."""
        try:
            return Alone.model_validate_json(self._path(version, version).read_bytes()).milliseconds
        except (OSError, ValidationError):
            return None

    def keep_alone(self, version: Version, milliseconds: float) -> None:
        """Keep the time of a version without any candidate."""
        self._write(self._path(version, version), Alone(milliseconds=milliseconds))

    def _write(self, path: Path, value: Value) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_suffix(f".{os.getpid()}.partial")  # other lanes may be at it too
        partial.write_text(value.model_dump_json())
        partial.replace(path)

    def _path(self, first: Version, other: Version) -> Path:
        return self.folder / f"{content_hash('baseline', *self.key, side_name(*first), side_name(*other))}.json"


class Field(NamedTuple):
    """Who is raced, and what the others are known to take."""

    lineup: Lineup
    versions: Sequence[Version]
    """All that are asked for, the first of them raced in any case."""
    found: Mapping[Version, Ratio]
    """Compiled ones that are remembered."""


def line_up(candidate: CandidateSide, versions: Sequence[Version], known: Remembered) -> Field:
    """Do what `workers.judging.timing.line_up` does, but for compiled versions that are remembered."""
    first, *others = versions
    compiled = [version for version in others if version[0] is not Baseline.EAGER]
    found = {version: ratio for version in compiled if (ratio := known.find(first, version)) is not None}
    lineup = timing.line_up(candidate, [version for version in versions if version not in found])
    return Field(lineup, versions, found)


def race(field: Field, budget_s: float, known: Remembered) -> Race:
    """Do what `workers.judging.timing.race` does, add what is remembered, and remember what was compiled."""
    first, *others = field.versions
    raced = timing.race(field.lineup, budget_s)
    for version in others:
        if version[0] is not Baseline.EAGER and version not in field.found:
            known.keep(first, version, (raced.blocks[side_name(*first)], raced.blocks[side_name(*version)]))
    rows = [*raced.timing.baselines, *(_infer(raced.timing.baselines[0], *item) for item in field.found.items())]
    rows.sort(key=lambda row: field.versions.index((row.baseline, row.precision)))
    return raced._replace(timing=raced.timing.model_copy(update={"baselines": tuple(rows)}))


def _infer(first: BaselineTiming, version: Version, known: Ratio) -> BaselineTiming:
    """Compute a speedup over `version` from that over the first baseline; the two intervals add in quadrature."""

    def reach(end: float, center: float, other_end: float, other_center: float) -> float:
        return math.hypot(math.log(end / center), math.log(other_end / other_center))

    speedup = first.speedup / known.ratio
    down = reach(first.speedup_low, first.speedup, known.high, known.ratio)
    up = reach(first.speedup_high, first.speedup, known.low, known.ratio)
    return BaselineTiming(
        baseline=version[0],
        precision=version[1],
        reference_ms=first.reference_ms / known.ratio,
        speedup=speedup,
        speedup_low=speedup * math.exp(-down),
        speedup_high=speedup * math.exp(up),
        remembered=True,
    )
