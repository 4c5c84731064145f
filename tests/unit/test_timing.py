"""Plans and summaries, over times that are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.correctness import Precision
from drkernel_q.evaluation import Baseline
from workers.judging.timing import Plan, plan, summarize

EAGER, COMPILED = (Baseline.EAGER, Precision.REFERENCE), (Baseline.COMPILE, Precision.TF32)


@given(st.sampled_from(["cuda", "cpu"]), st.floats(1e-7, 1e3), st.floats(0.01, 600))
def test_a_plan_has_its_least_and_its_most(device: str, seconds_a_round: float, budget_s: float) -> None:
    counts = plan(device, seconds_a_round, budget_s)
    assert 3 <= counts.blocks <= 6
    assert counts.settle >= 1
    assert (4 <= counts.calls <= 18) if device == "cuda" else (2 <= counts.calls <= 10)
    spent_s = counts.blocks * (counts.calls + counts.settle) * seconds_a_round
    assert spent_s <= budget_s * 1.0001 or counts.blocks == 3, "beyond the budget only the fewest calls are made"


def test_a_plan_for_fast_slow_and_instant_calls() -> None:
    assert plan("cuda", 1e-4, 5.0) == Plan(blocks=6, calls=17, settle=1)
    assert plan("cuda", 0.1, 5.0) == Plan(blocks=6, calls=7, settle=1)
    assert plan("cuda", 10.0, 5.0) == Plan(blocks=3, calls=4, settle=1)
    assert plan("cpu", 10.0, 5.0) == Plan(blocks=3, calls=2, settle=1)
    assert plan("cpu", 0.0, 5.0).calls == 10


def test_the_summary_is_of_all_calls_and_the_first_baseline_is_the_headline() -> None:
    eager = [[4.0, 4.0, 4.4], [4.2, 4.2, 4.2]]
    compiled = [[3.0, 3.0, 3.0], [2.7, 2.7, 2.7]]
    candidate = [[2.0, 2.0, 2.0], [2.1, 2.1, 9.0]]
    result = summarize({EAGER: eager, COMPILED: compiled}, candidate)
    assert (result.runs, result.blocks) == (6, 2)
    assert result.candidate_ms == pytest.approx(2.05)
    assert result.candidate_iqr_ms == pytest.approx(0.1)
    assert result.reference_ms == pytest.approx(4.2)
    assert result.speedup == pytest.approx(2.0)
    assert [(row.baseline, row.precision) for row in result.baselines] == [EAGER, COMPILED]
    assert result.baselines[0].speedup == result.speedup
    assert result.baselines[0].speedup_low == result.speedup_low <= result.speedup <= result.speedup_high
    assert result.baselines[1].reference_ms == pytest.approx(2.85)
    assert result.baselines[1].speedup == pytest.approx(np.sqrt(1.5 * 2.7 / 2.1))
    assert result.drift == pytest.approx(0.1), "the largest drift of any baseline"


@pytest.mark.parametrize(("last", "drift"), [(1.0, 0.0), (1.1, 0.1), (0.5, 0.5)])
def test_drift_is_from_the_first_block_to_the_last(last: float, drift: float) -> None:
    blocks = [[1.0, 1.0, 8.0], [7.0, 7.0, 7.0], [last, last, last]]
    assert summarize({EAGER: blocks}, blocks).drift == pytest.approx(drift)
