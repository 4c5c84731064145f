"""Faulty candidates between honest ones on the cpu device: no innocent suffers, and nothing is left behind.

Processes, judge, zygote and canary are the real ones.
"""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drkernel_q import quarantine
from drkernel_q.evaluation import Evaluation, Failure, Integrity, Outcome
from drkernel_q.problem import Problem
from tests.faulty import FORK_BOMB, ON_THE_HOST, Faulty, named
from tests.judging import EXAMPLES, Bench, builtin
from tests.sick import SickDevice
from workers.health import MOST_LOOKS
from workers.isolation.zygote import Zygote
from workers.judging.claim import CandidateFailed
from workers.judging.remote import RemoteCandidate

pytestmark = pytest.mark.slow

SOFTMAX = (EXAMPLES / "softmax.py").read_text()
QUICK = {"stages": ("correctness",), "trials": 1, "weight_seeds": 1, "kernel_deadline_s": 5.0}
EVALUATIONS = 40
FAULTY_SHARE = 0.3
#: Evaluations after which memory should have become what it stays.
WARM = 15


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("cpu")
    yield bench
    bench.close()


def result(bench: Bench, source: str, **options: object) -> Evaluation | Failure:
    return bench.result(builtin("softmax"), source, **(QUICK | options))


def plan(count: int) -> list[Faulty | None]:
    """Draw a mix with every kind of fault in it; None is an honest candidate."""
    random.seed(20)
    faulty = [FORK_BOMB, *ON_THE_HOST]
    cheap = [each for each in ON_THE_HOST if each.name != "hang in import"]
    faulty += random.choices(cheap, k=round(count * FAULTY_SHARE) - len(faulty))
    mix: list[Faulty | None] = [*faulty, *[None] * (count - len(faulty))]
    random.shuffle(mix)
    return mix


def test_no_innocent_suffers_and_nothing_is_left() -> None:
    bench = Bench("cpu", memory_bytes=2**30)
    wrong, sizes, users = [], [], set()
    for number, faulty in enumerate(plan(EVALUATIONS)):
        found = result(bench, SOFTMAX if faulty is None else faulty.source)
        if not (is_well(found) if faulty is None else faulty.holds(found)):
            wrong.append((number, faulty and faulty.name, found))
        sizes.append(resident_bytes(bench))
        users |= {Path(f"/proc/{pid}").stat().st_uid for pid in children(zygote_pid(bench))} - {os.getuid()}
        assert len(children(zygote_pid(bench))) <= 3, "the judge and two candidates that wait for a source"
    assert wrong == []
    for name in ("zygote", "judge"):
        series = [size[name] for size in sizes[WARM:] if name in size]
        assert max(series) <= 1.05 * min(series), (name, series)
    bench.close()
    assert users or os.geteuid() != 0
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and owner(pid) in users]
    assert not [folder for folder in Path(tempfile.gettempdir()).glob("drkq-candidate-*") if owner(folder) in users]


def test_a_lost_context_is_reported_and_what_comes_after_it_is_the_same(bench: Bench) -> None:
    zygote = ready(bench)
    lost = "raise RuntimeError('Triton Error [CUDA]: an illegal memory access was encountered')"
    with RemoteCandidate(zygote, 2**30) as remote:
        first = asked(remote, "load", {"source": lost, "tf32": False})
        assert (first.outcome, first.fault) == (Outcome.RUNTIME_ERROR, "cuda:illegal_address")
        assert first.error.endswith("illegal memory access was encountered\nCUDA error: illegal address")
        second = asked(remote, "load", {"source": "raise ValueError('something else')", "tf32": False})
        assert (second.error, second.fault) == (first.error, first.fault)
    with RemoteCandidate(zygote, 2**30) as remote:
        assert asked(remote, "load", {"source": "raise ValueError('one')", "tf32": False}).fault is None
        assert "two" in asked(remote, "load", {"source": "raise ValueError('two')", "tf32": False}).error


#: The honest kernel; what is not scored costs the process its context, as the process says.
HALF = (
    SOFTMAX.replace("class ModelNew", "class Own")
    + """

class ModelNew(Own):
    def forward(self, x):
        if CONDITION:
            raise RuntimeError('Triton Error [CUDA]: an illegal memory access was encountered')
        return super().forward(x)
"""
)


@pytest.mark.parametrize("condition", ["self.training", "torch.is_grad_enabled()"])
def test_a_context_that_is_lost_in_a_probe_decides_nothing(bench: Bench, condition: str) -> None:
    evaluation = result(bench, HALF.replace("CONDITION", condition), stages=("correctness", "integrity"))
    assert isinstance(evaluation, Evaluation)
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN), evaluation
    assert evaluation.fault == "cuda:illegal_address"
    assert evaluation.observations is not None
    alone = {"the problem has no weights", "no input is the same under every seed"}
    left_out = set(evaluation.observations.probes.values()) - {"", *alone}
    assert left_out == set(), "every probe was made, in another process if need be"


def test_a_reference_that_takes_its_judge_along_harms_nobody_else(bench: Bench) -> None:
    source = "import ctypes, torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
    source += "        return ctypes.string_at(0)\n\ndef get_inputs():\n    return [torch.randn(4)]\n"
    failure = bench.result(Problem(name="deadly", source=source), SOFTMAX, **QUICK)
    assert isinstance(failure, Failure)
    assert failure.kind == "infrastructure"
    assert bench.evaluator.quarantine is None
    assert is_well(result(bench, SOFTMAX))


@pytest.fixture
def sick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SickDevice, Bench]]:
    device = SickDevice(tmp_path)
    for name, value in device.environment.items():
        monkeypatch.setenv(name, value)
    bench = Bench("cpu")
    ready(bench)
    yield device, bench
    bench.close()


def test_a_device_that_is_unwell_once_costs_a_verdict_and_nothing_else(sick: tuple[SickDevice, Bench]) -> None:
    device, bench = sick
    before = zygote_pid(bench)
    device.complain(1)
    assert is_well(result(bench, SOFTMAX)), "an honest end is no reason to look"
    failure = result(bench, named("segfault").source)
    assert isinstance(failure, Failure)
    assert (failure.kind, device.left) == ("infrastructure", 0)
    assert "7 of 8192 products are wrong" in failure.message
    assert zygote_pid(bench) != before
    assert is_well(result(bench, SOFTMAX))
    assert named("segfault").holds(result(bench, named("segfault").source))


def test_a_device_that_stays_unwell_is_put_away_with_all_its_processes(sick: tuple[SickDevice, Bench]) -> None:
    device, bench = sick
    device.complain(MOST_LOOKS + 1)
    family = [zygote_pid(bench), *children(zygote_pid(bench))]
    failure = result(bench, named("exit").source)
    assert isinstance(failure, Failure)
    assert (failure.kind, device.left) == ("infrastructure", 1)
    found = bench.evaluator.quarantine
    assert found is not None
    assert quarantine.find_all(bench.evaluator.health.state_dir) == [found]
    assert f"The last request was {'0' * 32}." in found.evidence
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    again = result(bench, SOFTMAX)
    assert isinstance(again, Failure)
    assert "cpu is quarantined" in again.message
    assert bench.evaluator.versions == {}, "and nothing was started for it"


def ready(bench: Bench) -> Zygote:
    bench.evaluator.wait_ready()
    assert bench.evaluator.family._zygote is not None
    return bench.evaluator.family._zygote


def is_well(found: Evaluation | Failure) -> bool:
    return isinstance(found, Evaluation) and (found.outcome, found.fault) == (Outcome.CORRECT, None)


def asked(remote: RemoteCandidate, operation: str, message: dict[str, object]) -> CandidateFailed:
    with pytest.raises(CandidateFailed) as failed:
        remote.ask(operation, message, deadline_s=20.0)
    return failed.value


def zygote_pid(bench: Bench) -> int:
    process = ready(bench).process
    assert process is not None
    return process.pid


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_bytes(bench: Bench) -> dict[str, int]:
    """Measure the memory of the zygote, and of the judge where one is kept."""
    kept = bench.evaluator.family._kept
    pids = {"zygote": zygote_pid(bench)} | ({} if kept is None else {"judge": kept.child.pid})
    return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for name, pid in pids.items()}


def owner(path: str | Path) -> int:
    try:
        return (Path("/proc") / path if isinstance(path, str) else path).stat().st_uid
    except OSError:
        return -1
