"""The self-test of the stop-watch: silent about an honest one, and not about one that lies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from drkernel_q.errors import UnreliableClock
from drkernel_q.evaluation import Failure
from drkernel_q.settings import Settings
from tests.judging import builtin
from tests.values import a_request
from workers import family
from workers.device import find_device
from workers.evaluator import Evaluator
from workers.exchange.stopwatch import Stopwatch
from workers.family import Family
from workers.selftest import find_faults


def test_the_stopwatch_can_be_trusted_here() -> None:
    assert find_faults("cpu") == []


@pytest.mark.parametrize("factor", [0.5, 20.0])
def test_a_stopwatch_that_lies_is_found_out(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    honest = Stopwatch.time

    def lying(self: Stopwatch, call: Callable[[], Any]) -> tuple[float, list[Tensor]]:
        milliseconds, outputs = honest(self, call)
        return factor * milliseconds, outputs

    monkeypatch.setattr(Stopwatch, "time", lying)
    (fault,) = find_faults("cpu")
    assert fault.startswith("a wait of 20 ms is timed at ")


class Liar:
    """A process whose self-test has failed."""

    def __init__(self, *_: Any) -> None:
        self.channel = self

    def receive(self, _: float) -> tuple[dict[str, Any], list[int]]:
        return {"faults": ["work in a CUDA graph of 5 ms is timed at 0.01 ms"]}, []

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_nothing_is_judged_where_the_stopwatch_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(family, "Process", Liar)
    monkeypatch.setattr(Family, "end", lambda *_: None)
    worker = Evaluator(Settings(cache_dir=tmp_path), find_device("cpu"), "here")
    with pytest.raises(UnreliableClock, match="On cpu work in a CUDA graph of 5 ms is timed"):
        worker.wait_ready()
    result = worker.judge(a_request(problem=builtin("softmax")), lambda: False)
    assert isinstance(result, Failure)
    assert result.kind == "infrastructure"
    worker.close()
