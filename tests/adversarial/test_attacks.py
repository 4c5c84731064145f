"""No attack pays: each ends in the right outcome within its deadline, and the next honest kernel is judged clean."""

import time
from collections.abc import Iterator

import pytest

from drkernel_q.evaluation import Integrity, Outcome
from drkernel_q.problem import Problem
from drkernel_q.reward import reward
from tests.adversarial.attacks import BROKEN, DISHONEST, HONEST, Attack
from tests.judging import Bench, builtin

pytestmark = pytest.mark.slow

#: Seconds that a candidate may take for one call here; an evaluation may take this and a little more.
CALL_S = 4.0
#: Small enough to be filled within `CALL_S` on a busy machine.
MEMORY_BYTES = 1024 * 2**20


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("cpu", memory_bytes=MEMORY_BYTES)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def softmax() -> Problem:
    return builtin("softmax")


def check(bench: Bench, problem: Problem, attack: Attack) -> None:
    start = time.monotonic()
    evaluation = bench.judge(problem, attack.source, kernel_deadline_s=CALL_S)
    assert time.monotonic() - start < CALL_S + 15
    assert evaluation.outcome in attack.outcomes, evaluation.error
    if attack.integrity is not None:
        assert evaluation.integrity is attack.integrity, evaluation.evidence
    assert attack.codes <= {item.code for item in evaluation.evidence}
    if attack.integrity is not Integrity.CLEAN:
        assert evaluation.integrity is not Integrity.CLEAN
        assert reward(evaluation) == 0.0


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_candidate_ends_in_the_right_outcome(bench: Bench, softmax: Problem, name: str) -> None:
    check(bench, softmax, BROKEN[name])


@pytest.mark.parametrize("name", DISHONEST)
def test_a_dishonest_candidate_is_found_out(bench: Bench, softmax: Problem, name: str) -> None:
    check(bench, softmax, DISHONEST[name])


def test_the_next_honest_candidate_is_clean(bench: Bench, softmax: Problem) -> None:
    evaluation = bench.judge(softmax, HONEST)
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN)
    assert evaluation.profile_ratio is not None
    assert evaluation.profile_ratio > 0.98
