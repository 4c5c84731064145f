"""Recorded facts as the only judge: what is known, what is not, and a run that learns from them alone."""

from pathlib import Path

import pytest

from drkernel_q.errors import BadSettings
from drkernel_q.evaluation import EvaluationRequest, Protocol
from drkernel_q.store import Store
from policy.rollouts.recorded import RecordedJudge
from tests.values import H200, SOFTMAX, a_reply, a_request, an_evaluation


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(f"sqlite:///{tmp_path / 'facts.sqlite'}")
    store.upgrade()
    return store


def known(store: Store, source: str, speedup: float, device_kind: str = H200) -> EvaluationRequest:
    request = a_request(source)
    store.record(request, a_reply(request, an_evaluation(speedup=speedup, device_kind=device_kind)))
    return request


async def test_it_knows_what_was_measured_there_in_the_same_way_and_nothing_else(store: Store) -> None:
    right, slow = known(store, "right", 2.0), known(store, "elsewhere", 0.1, device_kind="cpu")
    judge = RecordedJudge(store, H200, Protocol())
    for _ in range(2):
        found = await judge.evaluate(SOFTMAX, right.kernel)
        assert found is not None
        assert found.speedup == 2.0
    assert await judge.evaluate(SOFTMAX, slow.kernel) is None
    assert await judge.evaluate(SOFTMAX, a_request("never measured").kernel) is None
    assert await RecordedJudge(store, H200, Protocol(trials=7)).evaluate(SOFTMAX, right.kernel) is None
    assert judge.counts == {"known": 2, "unknown": 2}


@pytest.mark.parametrize(("kind", "message"), [(None, "DRKQ_RECORDED"), ("sm_100/NVIDIA B200", "no facts")])
def test_without_facts_it_says_so_at_once(store: Store, kind: str | None, message: str) -> None:
    known(store, "right", 2.0)
    with pytest.raises(BadSettings, match=message):
        RecordedJudge(store, kind, Protocol())
