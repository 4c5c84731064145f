"""A candidate's process that works ahead: it loads, builds and compiles by itself, and launches when it is told to."""

import contextlib
import os
import time
from collections.abc import Iterator

import pytest
import torch

from drkernel_q.evaluation import Outcome
from tests.judging import EXAMPLES, builtin
from workers.comparison.reference import Reference
from workers.family import Family
from workers.judging import trial
from workers.judging.claim import CandidateFailed
from workers.judging.remote import RemoteCandidate
from workers.judging.session import Session

pytestmark = pytest.mark.slow

EXAMPLE = (EXAMPLES / "softmax.py").read_text()
SLOW = EXAMPLE.replace("import torch\n", "import time\nimport torch\ntime.sleep(0.3)\n", 1)
PLAIN = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.softmax(-1)\n"


@pytest.fixture
def reference() -> Reference:
    torch.set_num_threads(1)
    return Reference(builtin("softmax").small(), "cpu", train=False)


@contextlib.contextmanager
def rehearsed(family: Family, reference: Reference, source: str, deadline_s: float = 20.0) -> Iterator[Session]:
    assert family._zygote is not None
    zygote = family._zygote
    session = Session(lambda: RemoteCandidate(zygote, 2**31), "cpu", deadline_s, lambda: 60.0)
    session.remote.wait_ready()
    try:
        with session.ahead():
            session.load(source)
            trial.build(session, reference)
            session.rehearse(reference.inputs(1), train=False)
        yield session
    finally:
        session.close()


@pytest.mark.parametrize("source", [EXAMPLE, SLOW, PLAIN], ids=["triton", "slow to load", "torch alone"])
def test_it_goes_on_when_it_is_told_to_and_is_fit_for_more(family: Family, reference: Reference, source: str) -> None:
    with rehearsed(family, reference, source) as session:
        session.remote.reach()
        waits = bool(session.remote._begun)
        assert waits == (source is not PLAIN)
        session.remote.go()
        assert not session.remote._begun
        trial.build(session, reference)
        inputs = reference.inputs(2)
        expected = reference.expected(inputs)
        answer = session.call(inputs, expected, train=False)
        assert trial.compare(expected, answer).outcome is Outcome.CORRECT
        assert answer.own_launches == (source is not PLAIN)  # what was rehearsed does not count


def test_it_launches_nothing_before(family: Family, reference: Reference) -> None:
    said = EXAMPLE.replace("        return ", "        print('launched', flush=True)\n        return ")
    assert said != EXAMPLE
    with rehearsed(family, reference, said) as session:
        session.remote.reach()
        time.sleep(0.1)
        assert b"launched" not in session.remote.output
        session.remote.go()
        for _ in range(100):
            if b"launched" in session.remote.output:
                break
            time.sleep(0.02)
        else:
            pytest.fail("it never went on")


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("raise ValueError", Outcome.COMPILE_ERROR),
        (PLAIN.replace("x.softmax(-1)", "x.no_such_thing"), Outcome.RUNTIME_ERROR),
        (f"import os\nos._exit(3)\n{PLAIN}", Outcome.CRASHED),
    ],
)
def test_what_fails_says_so_at_once(family: Family, reference: Reference, source: str, outcome: Outcome) -> None:
    with rehearsed(family, reference, source) as session:
        with pytest.raises(CandidateFailed) as failed:
            session.remote.reach()
        assert failed.value.outcome is outcome


def test_one_that_hangs_is_waited_for_once_and_not_for_all_that_was_begun(family: Family, reference: Reference) -> None:
    with rehearsed(family, reference, "while True: pass", deadline_s=1.0) as session:
        start = time.monotonic()
        with pytest.raises(CandidateFailed, match="no answer within 1 s") as failed:
            session.remote.reach()
        assert failed.value.outcome is Outcome.TIMEOUT
        assert time.monotonic() - start < 3.0, "five requests were begun"


def test_one_that_dies_while_it_waits_is_noticed(family: Family, reference: Reference) -> None:
    with rehearsed(family, reference, EXAMPLE) as session:
        session.remote.reach()
        assert session.remote.child is not None
        os.kill(session.remote.child.pid, 9)
        with pytest.raises(CandidateFailed):
            session.remote.go()
