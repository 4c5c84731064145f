"""Faults of a real device: each has its word, and the next evaluation is innocent. Run on a GPU machine."""

import time
from collections.abc import Iterator

import pytest

from drkernel_q.evaluation import Evaluation, Failure, Integrity, Outcome
from tests.faulty import ON_CUDA, Faulty, named
from tests.judging import EXAMPLES, Bench, builtin

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

SOFTMAX = (EXAMPLES / "softmax.py").read_text()
QUICK = {"stages": ("correctness", "integrity"), "trials": 2, "kernel_deadline_s": 5.0}
ALL = (*ON_CUDA, named("segfault"), named("exit"), named("hang in import"))
#: The honest kernel; what is not scored, or an index that nobody wrote, costs the process its context.
ASSERTS = "x[torch.full((8,), 2**40, device=x.device)].sum().item()"
INDEXED = """

@triton.jit
def count_kernel(index, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(index + place, place.to(tl.int64))

class ModelNew(Own):
    def forward(self, x):
        index = torch.empty(16, dtype=torch.int64, device=x.device)
        count_kernel[(1,)](index, BLOCK=16)
        y = super().forward(x)
        y[:16] = y[index]
        return y
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("cuda:0", memory_bytes=16 * 2**30)
    bench.evaluator.wait_ready()
    yield bench
    bench.close()


def result(bench: Bench, source: str, **options: object) -> Evaluation | Failure:
    return bench.result(builtin("softmax"), source, deadline_s=120.0, **(QUICK | options))


def is_well(found: Evaluation | Failure) -> bool:
    return isinstance(found, Evaluation) and found.honest_and_correct and found.fault is None


@pytest.mark.parametrize("faulty", ALL, ids=[each.name for each in ALL])
def test_a_fault_has_its_word_and_the_next_is_innocent(bench: Bench, faulty: Faulty) -> None:
    found = result(bench, faulty.source)
    assert faulty.holds(found), found
    assert is_well(result(bench, SOFTMAX, stages=("correctness", "integrity", "profile", "timing")))
    assert bench.evaluator.quarantine is None


@pytest.mark.parametrize(
    "body",
    [
        f"if self.training:\n            {ASSERTS}\n        return super().forward(x)",
        f"if torch.is_grad_enabled():\n            {ASSERTS}\n        return super().forward(x)",
    ],
    ids=["in the other mode", "with gradients"],
)
def test_a_context_that_is_lost_in_a_probe_decides_nothing(bench: Bench, body: str) -> None:
    source = SOFTMAX.replace("class ModelNew", "class Own")
    source += f"\n\nclass ModelNew(Own):\n    def forward(self, x):\n        {body}\n"
    found = result(bench, source, stages=("correctness", "integrity", "profile", "timing"))
    assert isinstance(found, Evaluation), found
    assert (found.outcome, found.integrity) == (Outcome.CORRECT, Integrity.CLEAN), found
    assert found.fault == "cuda:assert"


def test_an_index_that_nobody_wrote_is_the_probes_doing(bench: Bench) -> None:
    found = result(bench, SOFTMAX.replace("class ModelNew", "class Own") + INDEXED)
    assert isinstance(found, Evaluation), found
    assert found.outcome is Outcome.CORRECT, found.error
    assert found.observations is not None
    assert "" in found.observations.probes.values()


def test_a_canary_is_quick_and_alike(bench: Bench) -> None:
    bench.evaluator.wait_ready()
    found, seconds = [], []
    for _ in range(5):
        start = time.monotonic()
        found.append(bench.evaluator.family.ask("canary", 30.0))
        seconds.append(time.monotonic() - start)
    assert [each["complaint"] for each in found] == [None] * 5
    durations = [each["milliseconds"] for each in found]
    assert max(durations) < 1.5 * min(durations), durations
    assert min(durations) > 0.05, "long enough to be compared"
    assert sorted(seconds)[2] < 2.0, seconds


def test_device_memory_comes_back(bench: Bench) -> None:
    used = bench.evaluator.health.monitor.used_bytes
    assert is_well(result(bench, SOFTMAX))
    before = used()
    if before is None:
        pytest.skip("the driver does not tell what memory is in use")
    assert named("out of device memory").holds(result(bench, named("out of device memory").source))
    after = used()
    assert after is not None
    assert after < before + 2**30
