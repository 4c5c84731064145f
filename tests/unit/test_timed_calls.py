"""Timed calls of which some are looked at, as on a GPU: no candidate can tell, and no others are delivered."""

from collections.abc import Iterator

import pytest
import torch

from tests.adversarial.cases import FOLDER
from tests.judging import EXAMPLES, builtin
from workers.comparison.reference import Reference
from workers.family import Family
from workers.judging import side, trial
from workers.judging.remote import RemoteCandidate
from workers.judging.session import Session
from workers.judging.side import CandidateSide

pytestmark = pytest.mark.slow

HONEST = (EXAMPLES / "softmax.py").read_text()
LATE = (FOLDER / "attack" / "b05_works_when_it_is_let_go_of.py").read_text()
CALLS = 24


@pytest.fixture
def timed(family: Family, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CandidateSide]:
    monkeypatch.setattr(side, "LOOKED_AT", {"cpu": 4})
    torch.set_num_threads(1)
    reference = Reference(builtin("softmax").small(), "cpu", train=False)
    zygote = family._zygote
    assert zygote is not None
    session = Session(lambda: RemoteCandidate(zygote, 2**31), "cpu", 20.0, lambda: 60.0)
    session.load(request.param)
    trial.build(session, reference)
    candidate = CandidateSide(session, reference)
    yield candidate
    candidate.close()
    session.close()


@pytest.mark.parametrize("timed", [HONEST], indirect=True, ids=["honest"])
def test_some_are_looked_at_and_all_are_counted(timed: CandidateSide) -> None:
    assert all(timed.timed() > 0 for _ in range(CALLS))
    assert side.FULL <= timed.recheck.count < CALLS
    assert timed.recheck.faults == []
    assert [answer.own_launches for answer in timed.calls] == [1] * CALLS
    assert all(answer.settled and not answer.state and answer.outputs is None for answer in timed.calls)
    assert len(timed.seeds["timed"]) == CALLS


@pytest.mark.parametrize("timed", [LATE], indirect=True, ids=["late"])
def test_what_is_done_after_the_clock_is_missed_wherever_it_is_looked_at(timed: CandidateSide) -> None:
    for _ in range(CALLS):
        timed.timed()
    assert len(timed.recheck.faults) == timed.recheck.count < CALLS
