"""What an evaluation held in the judge's process is given back when it ends, and not when garbage is looked for."""

import gc
from collections.abc import Iterator
from typing import cast

import pytest
import torch

from drkernel_q.evaluation import EvaluationRequest, Outcome, Protocol
from drkernel_q.kernel import Kernel
from tests.judging import EXAMPLES, Bench, builtin
from workers.exchange.segment import Segment
from workers.isolation.wire import Channel
from workers.judging.judge import Judge
from workers.judging.spare import Spares

pytestmark = pytest.mark.slow

HONEST = (EXAMPLES / "softmax.py").read_text()


class Deaf:
    """Takes the place of the channel that hears of stages."""

    def send(self, _message: dict[str, object]) -> None: ...


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    torch.set_num_threads(1)
    bench = Bench("cpu")
    bench.evaluator.wait_ready()
    yield bench
    bench.close()


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> int:
    """Count what holds memory."""
    return sum(issubclass(type(each), torch.Tensor | Segment) for each in gc.get_objects())


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        (HONEST, Outcome.CORRECT),
        (HONEST.replace("tl.exp(", "2 * tl.exp2("), Outcome.WRONG_VALUE),
        (HONEST.replace("return y", "return y.no_such_thing"), Outcome.RUNTIME_ERROR),
    ],
)
@pytest.mark.usefixtures("no_collector")
def test_an_evaluation_leaves_nothing(bench: Bench, source: str, outcome: Outcome) -> None:
    family = bench.evaluator.family
    assert family._zygote is not None
    spares = Spares(family._zygote, family.memory_bytes)
    protocol = Protocol(timing_budget_s=0.1)
    facts = {"problem": builtin("softmax"), "kernel": Kernel(source=source), "protocol": protocol}
    request = EvaluationRequest(id="0" * 32, submitted_at="2026-01-01T00:00:00Z", **facts)

    def outcome_of_one() -> Outcome:
        return Judge(request, bench.evaluator.environment(), spares, cast("Channel", Deaf())).evaluate().outcome

    outcome_of_one()  # what torch keeps for good
    before = held()
    found = outcome_of_one()
    after = held()
    for spare in spares._ready:
        spare.close()
    assert (found, after) == (outcome, before)
