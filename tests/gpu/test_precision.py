"""Classes of products on a real GPU: what the hardware does is what the judge takes it for.

Run by hand on a GPU machine: `pytest tests/gpu/test_precision.py -m gpu -x -q -s`; with `-s` the figures are printed.
"""

from collections.abc import Iterator

import pytest
from torch import Tensor

from drkernel_q.correctness import Precision
from drkernel_q.evaluation import Baseline, Outcome
from drkernel_q.problem import Problem, builtin_files, load_problem
from drkernel_q.reward import reward
from tests.adversarial.cases import FOLDER
from tests.judging import Bench, builtin
from workers.comparison.correctness import Comparison, compare
from workers.comparison.reference import Reference
from workers.judging.whole import deviation, make_task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
LSTM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(512, 512, 2)
    def forward(self, x):
        return self.layers(x)[0]
def get_inputs():
    return [torch.randn(64, 32, 512)]
"""
ATTENTION = """
class Model(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
def get_inputs():
    return [torch.randn(4, 8, 1024, 64) for _ in range(3)]
"""
CONVOLUTION = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(64, 128, 3)
    def forward(self, x):
        return F.relu(self.layer(x))
def get_inputs():
    return [torch.randn(16, 64, 56, 56)]
"""
PROBLEMS = {
    "matmul": load_problem(builtin_files()["matmul"]),
    "mlp": load_problem(builtin_files()["mlp"]),
    "transformer_block": load_problem(builtin_files()["transformer_block"]),
    "lstm": Problem(name="lstm", source=HEAD + LSTM),
    "attention": Problem(name="attention", source=HEAD + ATTENTION),
    "convolution": Problem(name="convolution", source=HEAD + CONVOLUTION),
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("cuda:0", memory_bytes=32 * 2**30)
    yield bench
    bench.close()


def reference(name: str) -> Reference:
    made = Reference(PROBLEMS[name], "cuda", train=False)
    made.build(1)
    return made


def in_class(made: Reference, precision: Precision) -> Comparison:
    """Compare what torch itself gives in a class with what the judge expects of it."""
    inputs = made.inputs(1)
    expected = made.expected(inputs)
    output: Tensor = made.run(inputs, Baseline.EAGER, precision)
    result = compare(expected, [output.float()])
    print(
        f"{made.name:20} {precision.value:9} {result.outcome.value} {result.precision.value} {result.relative_l2:.2e}"
    )
    return result


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_torch_gives_in_a_class_is_taken_for_it_or_better(name: str, precision: Precision) -> None:
    result = in_class(reference(name), precision)
    assert result.outcome is Outcome.CORRECT, result.detail
    assert not result.precision.is_below(precision)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_reference_itself_is_no_downgrade(name: str) -> None:
    assert in_class(reference(name), Precision.REFERENCE).precision is Precision.REFERENCE


@pytest.mark.parametrize("name", ["matmul", "mlp", "convolution"])
def test_whole_numbers_are_exact_on_the_device(name: str) -> None:
    made = reference(name)
    made.narrow(Precision.REFERENCE)
    task = make_task(made)
    assert task is not None
    for precision in Precision:
        output = made.run(task.inputs, Baseline.EAGER, precision).float()
        assert deviation(task, [output]) is None, precision


CASES = {
    "f01_tf32_product": "tf32",
    "f01_half_product": "fp16",
    "f01_bfloat16_product": "bf16",
    "f01_tf32_by_hand": "tf32",
    "f01_tf32_truncated": "tf32",
}


@pytest.mark.parametrize(("name", "label"), CASES.items())
def test_a_kernel_is_named_and_timed_in_its_class(bench: Bench, name: str, label: str) -> None:
    source = (FOLDER / "attack" / f"{name}.py").read_text()
    evaluation = bench.judge(builtin("matmul"), source, timing_budget_s=2.0, deadline_s=120.0)
    shown = evaluation.correctness
    assert shown is not None
    assert (shown.precision_class, shown.downgraded, shown.whole_numbers) == (label, True, True)
    assert reward(evaluation) == 1.0
    assert evaluation.timing is not None
    own, full = evaluation.timing.baselines
    print(f"{name}: {own.precision.value} {own.reference_ms:.3f} ms, full precision {full.reference_ms:.3f} ms")
    assert (own.precision.value, full.precision) == (label, Precision.REFERENCE)
    assert own.reference_ms < full.reference_ms, "products of a lower class are faster"


def test_a_compiled_baseline_is_compiled_for_each_class(bench: Bench) -> None:
    source = (FOLDER / "attack" / "f01_tf32_product.py").read_text()
    evaluation = bench.judge(
        builtin("matmul"), source, baselines=("eager", "compile"), timing_budget_s=2.0, deadline_s=240.0
    )
    assert evaluation.timing is not None
    rows = {(row.baseline, row.precision): row.reference_ms for row in evaluation.timing.baselines}
    print(rows)
    assert rows[Baseline.COMPILE, Precision.TF32] < 0.8 * rows[Baseline.COMPILE, Precision.REFERENCE]
