"""Remembered baselines: measured once, inferred afterwards, over times that are known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from drkernel_q.correctness import Precision
from drkernel_q.evaluation import Baseline
from drkernel_q.problem import Problem
from tests.values import an_environment
from workers.judging import timing
from workers.judging.baseline import Remembered, line_up, race
from workers.judging.side import CandidateSide, Version
from workers.judging.timing import Race, summarize

EAGER, COMPILED = (Baseline.EAGER, Precision.REFERENCE), (Baseline.COMPILE, Precision.REFERENCE)
TUNED = (Baseline.MAX_AUTOTUNE, Precision.REFERENCE)
MS = {EAGER: 4.0, COMPILED: 2.0, TUNED: 1.6}
CANDIDATE = cast("CandidateSide", None)


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> list[list[Version]]:
    """Stand in for the stop-watch: a candidate of 1 ms against versions of known times, with noise of 0.2 %."""
    asked: list[list[Version]] = []
    generator = np.random.default_rng(0)

    def blocks(milliseconds: float) -> list[list[float]]:
        noisy: list[list[float]] = (milliseconds * (1 + 0.002 * generator.standard_normal((6, 18)))).tolist()
        return noisy

    def lined_up(_: Any, versions: Sequence[Version]) -> Any:
        asked.append(list(versions))
        return versions

    def raced(versions: Any, _: float) -> Race:
        sides = {version: blocks(MS[version]) for version in versions}
        own = blocks(1.0)
        names = {version[0].value: side for version, side in sides.items()}
        return Race(summarize(sides, own), None, 0.0, names | {"candidate": own}, [], {})

    monkeypatch.setattr(timing, "line_up", lined_up)
    monkeypatch.setattr(timing, "race", raced)
    return asked


def time_all(versions: Sequence[Version], known: Remembered) -> Race:
    return race(line_up(CANDIDATE, versions, known), 1.0, known)


def remembered(folder: Path, source: str = "x", **changes: str) -> Remembered:
    facts = an_environment().model_copy(update=changes)
    return Remembered.of(folder, Problem(name="p", source=source), facts, "eval")


def test_a_compiled_baseline_is_timed_once(raced: list[list[Version]], tmp_path: Path) -> None:
    versions = [EAGER, TUNED, COMPILED]
    for _ in range(3):
        rows = time_all(versions, remembered(tmp_path)).timing.baselines
        assert [(row.baseline, row.precision) for row in rows] == versions
        for row, version in zip(rows, versions, strict=True):
            assert row.speedup == pytest.approx(MS[version], rel=0.005)
            assert row.reference_ms == pytest.approx(MS[version], rel=0.005)
            assert row.speedup_low < row.speedup < row.speedup_high
    assert raced == [versions, [EAGER], [EAGER]]
    assert [row.remembered for row in rows] == [False, True, True]


def test_an_inferred_interval_is_wider_than_either(raced: list[list[Version]], tmp_path: Path) -> None:
    known = remembered(tmp_path)
    time_all([EAGER, COMPILED], known)
    eager, compiled = time_all([EAGER, COMPILED], known).timing.baselines
    ratio = known.find(EAGER, COMPILED)
    assert ratio is not None
    assert raced[-1] == [EAGER]
    width = compiled.speedup_high / compiled.speedup_low
    assert width > max(eager.speedup_high / eager.speedup_low, ratio.high / ratio.low)
    assert width < eager.speedup_high / eager.speedup_low * ratio.high / ratio.low


def test_what_decides_a_baseline_is_in_its_key(tmp_path: Path) -> None:
    known = remembered(tmp_path)
    blocks = [[1.0, 1.1], [1.0, 1.2]]
    known.keep(EAGER, COMPILED, (blocks, blocks))
    assert remembered(tmp_path).find(EAGER, COMPILED) is not None
    others = [
        remembered(tmp_path, source="y"),
        remembered(tmp_path, torch="9.9"),
        remembered(tmp_path, triton="9.9"),
        remembered(tmp_path, driver="9.9"),
        remembered(tmp_path, device_kind="sm_1/other"),
    ]
    assert all(other.find(EAGER, COMPILED) is None for other in others)
    assert known.find(EAGER, TUNED) is known.find(COMPILED, EAGER) is None


def test_a_broken_file_is_measured_again(raced: list[list[Version]], tmp_path: Path) -> None:
    known = remembered(tmp_path)
    time_all([EAGER, COMPILED], known)
    for path in tmp_path.iterdir():
        path.write_text("{")
    time_all([EAGER, COMPILED], known)
    assert raced == [[EAGER, COMPILED]] * 2
    assert known.find(EAGER, COMPILED) is not None
