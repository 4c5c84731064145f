"""Profiles on a real device: whose time it is, and that nothing is missing.

Run by hand on a GPU machine: `pytest tests/gpu/test_profile.py -m gpu -x -q -s`; with `-s` each profile is printed.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drkernel_q.evaluation import Evaluation, Integrity, Outcome
from drkernel_q.profile import KernelProfile, Origin, Profile
from tests.adversarial.cases import FOLDER, Case, load_case
from tests.judging import EXAMPLES, Bench, builtin
from workers.exchange.trace import Trace
from workers.harness.profiler import Profiler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"),
]

SOFTMAX = (EXAMPLES / "softmax.py").read_text()
#: One softmax in one Triton kernel, whose name is to be filled in.
NAMED = (FOLDER / "honest" / "named_like_other_kernels.py").read_text()
OWN_NAME = "triton_per_fused__softmax_0"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("cuda:0", memory_bytes=32 * 2**30)
    bench.evaluator.wait_ready()
    yield bench
    bench.close()


def case(path: str) -> Case:
    return load_case(FOLDER / f"{path}.py")


def judged(bench: Bench, one: Case, **options: Any) -> Evaluation:
    evaluation = bench.judge(one.problem, one.source, **one.options | options)
    show(one.name, evaluation)
    return evaluation


def show(name: str, evaluation: Evaluation) -> None:
    codes = [(item.code, item.weight.value, item.detail) for item in evaluation.evidence]
    print(
        f"\n{name}: {evaluation.outcome.value} {evaluation.integrity.value} {codes} {(evaluation.error or '')[-800:]}"
    )
    profile = evaluation.profile
    if profile is None:
        return
    timed_us = evaluation.timing.candidate_ms * 1e3 if evaluation.timing else float("nan")
    print(
        f"  PR {profile.profile_ratio} fault {profile.fault} timed {timed_us:.2f} us window {profile.window_us} us "
        f"busy {profile.busy_us} us early {profile.early_us} us streams {profile.streams}"
    )
    for row in profile.kernels[:12]:
        where = f"{row.operator or '-'}{' graph' if row.graph else ''}"
        print(f"  {row.origin.value:9} {row.device_us:10.2f} us {row.launches:6.1f}x {where:28} {row.name[:90]}")


def profile_of(evaluation: Evaluation) -> Profile:
    assert evaluation.outcome is Outcome.CORRECT, evaluation.error
    assert evaluation.profile is not None
    assert evaluation.profile.fault is None
    return evaluation.profile


def ratio(evaluation: Evaluation) -> float:
    found = profile_of(evaluation).profile_ratio
    assert found is not None
    return found


def own(evaluation: Evaluation) -> list[KernelProfile]:
    return [row for row in profile_of(evaluation).kernels if row.origin is Origin.CANDIDATE]


def origins(evaluation: Evaluation) -> set[Origin]:
    return {row.origin for row in profile_of(evaluation).kernels}


def codes(evaluation: Evaluation) -> set[str]:
    return {item.code for item in evaluation.evidence}


def recorded(*calls: Any) -> Trace:
    """Record calls in this process, each after a spin, as a timed call comes after one."""
    profiler = Profiler("cuda")
    profiler.start()
    for call in calls:
        torch.cuda._sleep(1_000_000)
        with profiler.call():
            call()
        torch.cuda.synchronize()
    trace = profiler.stop()
    print("\n", *trace.rows, *trace.spans, trace.fault, sep="\n  ")
    return trace


def test_what_kineto_gives() -> None:
    """What attribution rests on: links to operators, blocks, registers, marks at both ends, no launch lost."""
    x = torch.randn(4096, 1024, device="cuda")
    torch.softmax(x, -1)
    trace = recorded(*[lambda: torch.softmax(x, -1)] * 3)
    assert trace.fault is None
    (row,) = trace.rows
    assert (row.operator, row.times, row.graph, row.memory) == ("aten::_softmax", 3, False, False)
    assert row.threads
    assert row.registers
    for span in trace.spans:
        assert span.busy_us <= span.window_us <= span.busy_us + 50
        assert (span.early_us, span.streams) == (0.0, 1)


def test_what_kineto_gives_of_threads_copies_and_side_streams() -> None:
    import threading

    x = torch.randn(4096, 4096, device="cuda")
    side = torch.cuda.Stream()
    y = torch.empty_like(x)

    def threaded() -> None:
        thread = threading.Thread(target=lambda: torch.exp(x))
        thread.start()
        thread.join()

    def beside() -> None:
        with torch.cuda.stream(side):
            y.copy_(x)

    threaded()
    beside()
    torch.cuda.synchronize()
    trace = recorded(threaded, beside)
    assert trace.fault is None
    assert {(row.operator, row.memory) for row in trace.rows} == {("aten::exp", False), ("aten::copy_", True)}
    assert trace.spans[1].early_us > 0, "a copy on a stream that waits for nobody runs beside the spin"


def test_one_kernel_is_all_of_the_time(bench: Bench) -> None:
    evaluation = bench.judge(builtin("softmax"), SOFTMAX, timing_budget_s=2.0)
    show("softmax", evaluation)
    assert ratio(evaluation) > 0.99
    assert evaluation.integrity is Integrity.CLEAN
    profile, timing = profile_of(evaluation), evaluation.timing
    assert timing is not None
    assert profile.window_us == pytest.approx(timing.candidate_ms * 1e3, rel=0.25, abs=20)
    assert profile.busy_us == pytest.approx(timing.candidate_ms * 1e3, rel=0.25, abs=20)
    assert profile.early_us == 0.0
    assert profile.launches == 1.0
    assert evaluation.observations is not None
    modes = evaluation.observations.modes
    assert modes.keys() == {"train", "eval"}
    assert {call.on_device for call in modes.values()} == {tuple(row.name for row in own(evaluation))}
    assert evaluation.observations.compiled_calls == 0


@pytest.mark.parametrize(
    "name", ["sm90_xmma_gemm_f32f32_f32f32", "triton_poi_fused_add_0", "vectorized_elementwise_kernel", "Memcpy", "at"]
)
def test_renaming_changes_nothing(bench: Bench, name: str) -> None:
    evaluation = bench.judge(builtin("softmax"), NAMED.replace(OWN_NAME, name))
    show(name, evaluation)
    assert ratio(evaluation) > 0.99
    assert evaluation.integrity is Integrity.CLEAN
    assert [row.name for row in own(evaluation)] == [name]


@pytest.mark.parametrize(
    "path",
    [
        "attack/a05_decoy_sees_the_ablation",
        "attack/a05_decoy_in_a_graph",
        "attack/a07_empty_grid_beside_a_graph",
        "attack/a01_graph_of_torch",
        "attack/e11_launches_past_the_counters",
        "attack/e12_library_name_for_a_decoy",
        "attack/e12_library_name_in_a_graph",
    ],
)
def test_a_decoy_beside_torch(bench: Bench, path: str) -> None:
    evaluation = judged(bench, case(path))
    assert ratio(evaluation) < 0.1
    assert evaluation.integrity in (Integrity.REJECTED, Integrity.SUSPICIOUS)


@pytest.mark.parametrize(
    "path",
    [
        "honest/launches_a_compiled_kernel",
        "honest/autotuned",
        "honest/custom_operator",
        "honest/operator_for_the_compiler",
        "honest/renamed_when_compiled",
        "honest/chooses_by_measuring",
        "honest/two_streams_joined",
    ],
)
def test_however_it_is_launched(bench: Bench, path: str) -> None:
    evaluation = judged(bench, case(path))
    assert ratio(evaluation) > 0.99
    assert evaluation.integrity is Integrity.CLEAN
    assert evaluation.observations is not None
    assert evaluation.observations.compiled_calls == 0
    assert profile_of(evaluation).early_us == 0.0


def test_nodes_of_a_graph_are_whose_kernels_they_are(bench: Bench) -> None:
    evaluation = judged(bench, case("honest/cuda_graph_with_copies"))
    assert evaluation.integrity is Integrity.CLEAN
    (kernel,) = own(evaluation)
    assert (kernel.graph, kernel.operator, kernel.launches) == (True, None, 1.0)
    assert 0.2 < ratio(evaluation) < 0.9, "two copies of the same size lie beside it"


def test_the_compilers_kernels(bench: Bench) -> None:
    alone = judged(bench, case("attack/a22_nothing_but_the_compiler"), kernel_deadline_s=120.0, deadline_s=400.0)
    assert alone.integrity is Integrity.REJECTED
    assert ratio(alone) == 0.0
    assert Origin.COMPILER in origins(alone)
    assert "A22" in codes(alone)
    for path in ("attack/a22_compiler_wrote_it", "attack/a22_compiled_and_copied"):
        beside = judged(bench, case(path), kernel_deadline_s=120.0, deadline_s=400.0)
        assert beside.integrity in (Integrity.REJECTED, Integrity.SUSPICIOUS)
        assert Origin.COMPILER in origins(beside)


def test_a_library_through_torch_is_told_and_is_no_fault(bench: Bench) -> None:
    evaluation = judged(bench, case("honest/library_product_own_epilogue"))
    assert evaluation.integrity is Integrity.CLEAN
    assert {Origin.CANDIDATE, Origin.LIBRARY} <= origins(evaluation)
    product = next(row for row in profile_of(evaluation).kernels if row.origin is Origin.LIBRARY)
    assert (product.operator or "").startswith("aten::")


def test_a_library_past_torch(bench: Bench) -> None:
    evaluation = judged(bench, case("attack/a21_cublas_by_ctypes"))
    assert "A21" in codes(evaluation)
    assert ratio(evaluation) < 0.1
    assert any(row.origin is Origin.LIBRARY and row.operator is None for row in profile_of(evaluation).kernels)


@pytest.mark.parametrize("path", ["attack/e13_ends_every_session", "attack/e13_writes_down_more_calls"])
def test_a_recording_that_is_tampered_with_is_unknown_and_never_zero(bench: Bench, path: str) -> None:
    evaluation = judged(bench, case(path))
    assert evaluation.profile is not None
    assert evaluation.profile.profile_ratio is None
    assert evaluation.profile.fault
    assert evaluation.integrity is Integrity.UNKNOWN
    assert codes(evaluation) == {"E13"}


@pytest.fixture
def nvcc() -> str:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("nvcc") or next((str(path) for path in [Path(home) / "bin" / "nvcc"] if path.exists()), None)
    if found is None:
        pytest.skip("nvcc is missing, and nothing can compile CUDA C++")
    return found


def test_cuda_of_its_own(bench: Bench, nvcc: str) -> None:
    one = case("honest/cuda_extension")
    evaluation = judged(bench, one)
    assert ratio(evaluation) > 0.99
    assert evaluation.integrity is Integrity.CLEAN
    assert own(evaluation)[0].name.startswith("void row_softmax_kernel<float>(")
    assert evaluation.observations is not None
    assert all(call.on_device for call in evaluation.observations.modes.values())


def test_cuda_of_its_own_is_not_triton(bench: Bench, nvcc: str) -> None:
    evaluation = judged(bench, case("honest/cuda_extension"), backend="triton")
    assert ratio(evaluation) == 0.0
    assert evaluation.integrity is Integrity.REJECTED
    assert origins(evaluation) == {Origin.OTHER}


@pytest.mark.parametrize(
    "path",
    ["attack/a05_decoy_in_cuda", "attack/a21_library_built_in", "attack/a21_torch_past_its_dispatcher"],
)
def test_cuda_that_does_not_do_the_work(bench: Bench, nvcc: str, path: str) -> None:
    evaluation = judged(bench, case(path))
    assert evaluation.integrity in (Integrity.REJECTED, Integrity.SUSPICIOUS)
    assert ratio(evaluation) < 0.1
