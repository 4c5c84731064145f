"""Audits on a real device: what only a GPU can measure, and what a reference can do to it.

Run by hand on a GPU machine: `pytest tests/gpu/test_audit.py -m gpu -x -q -s`; with `-s` the seconds of each part are
printed.
"""

from collections.abc import Iterator

import pytest

from drkernel_q.audit import Audit
from drkernel_q.problem import Problem
from tests.judging import Bench, builtin

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

HEAD = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return "
ROWS = "\ndef get_inputs():\n    return [torch.randn(64, 64)]\n"
SIZE_BYTES = 4096 * 8192 * 4


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("cuda:0", memory_bytes=32 * 2**30)
    bench.evaluator.wait_ready()
    yield bench
    bench.close()


def audited(bench: Bench, problem: Problem, *, compile: bool = False) -> Audit:
    audit = bench.audit(problem, compile=compile, deadline_s=120.0)
    assert isinstance(audit, Audit), audit
    print(problem.name, audit.durations_s, audit.gaps)
    return audit


def test_a_softmax_is_one_kernel_of_known_size(bench: Bench) -> None:
    audit = audited(bench, builtin("softmax"), compile=True)
    assert (audit.flags, audit.gaps) == ((), {})
    assert audit.kernels == 1
    assert audit.bytes_least == pytest.approx(2 * SIZE_BYTES, rel=1e-6), "but for numbers that are zero by chance"
    assert audit.peak_bytes is not None
    assert 2 * SIZE_BYTES <= audit.peak_bytes <= 2.1 * SIZE_BYTES
    assert audit.reference_ms is not None
    assert audit.compile_ms is not None
    assert 0.05 < audit.reference_ms < 1


def test_the_second_audit_finds_a_warm_process(bench: Bench) -> None:
    seconds = [audited(bench, builtin("gelu")).durations_s["total"] for _ in range(2)]
    assert seconds[1] < 1


def test_short_calls_are_flagged_and_products_counted(bench: Bench) -> None:
    tiny = audited(bench, Problem(name="tiny", source=f"{HEAD}x + 1\n{ROWS}"))
    assert [flag.code for flag in tiny.flags] == ["launch_bound"]
    large = ROWS.replace("64, 64", "4096, 4096")
    diagonal = audited(bench, Problem(name="diagonal", source=f"{HEAD}torch.diag(x[0]) @ x\n{large}"))
    assert diagonal.flops == 2 * 4096**3
    assert diagonal.flags == ()


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("x[torch.full((1,), 10**6, device=x.device)]", "trial raises"),
        ("torch.empty(2**40, device=x.device)", "needs more memory"),
    ],
    ids=["fault", "memory"],
)
def test_what_a_reference_does_to_the_device_is_over_with_its_audit(bench: Bench, forward: str, reason: str) -> None:
    broken = audited(bench, Problem(name="trial", source=f"{HEAD}{forward}\n{ROWS}"))
    assert [flag.code for flag in broken.flags] == ["unusable"]
    assert reason in broken.flags[0].detail or "device" in broken.flags[0].detail
    assert audited(bench, builtin("softmax")).flags == ()
