"""The judge on less precise products, whole numbers and other weights, on the cpu device."""

import textwrap

import pytest

from drkernel_q.correctness import Precision
from drkernel_q.evaluation import Evaluation, Failure, Integrity, Outcome
from drkernel_q.observation import Probe
from drkernel_q.problem import Problem
from drkernel_q.reward import RewardConfig, reward
from tests.adversarial.cases import FOLDER
from tests.judging import Bench, builtin

pytestmark = pytest.mark.slow

HALF = (FOLDER / "attack" / "f01_half_product.py").read_text()
TF32 = (FOLDER / "attack" / "f01_tf32_by_hand.py").read_text()


def versions(evaluation: Evaluation) -> list[Precision]:
    assert evaluation.timing is not None
    return [row.precision for row in evaluation.timing.baselines]


def test_a_downgrade_is_correct_labelled_timed_in_its_class_and_not_paid(bench: Bench) -> None:
    evaluation = bench.judge(builtin("matmul"), HALF)
    shown = evaluation.correctness
    assert shown is not None
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN)
    assert (shown.precision_class, shown.downgraded, shown.whole_numbers) == ("fp16", True, True)
    assert [item.code for item in evaluation.evidence] == ["F1"]
    assert versions(evaluation) == [Precision.FP16, Precision.REFERENCE]
    assert evaluation.timing is not None
    assert evaluation.timing.speedup == evaluation.timing.baselines[0].speedup
    assert reward(evaluation) == 1.0
    assert reward(evaluation, RewardConfig(allow_downgrade=("tf32",))) == 1.0
    assert reward(evaluation, RewardConfig(allow_downgrade=("fp16",))) > 1.0


@pytest.mark.parametrize(
    ("source", "asked", "downgraded", "timed"),
    [
        (HALF, Precision.FP16, False, [Precision.FP16]),
        (HALF, Precision.BF16, False, [Precision.BF16]),
        (HALF, Precision.TF32, True, [Precision.FP16, Precision.TF32]),
        (TF32, Precision.TF32, False, [Precision.TF32]),
    ],
)
def test_a_class_that_is_asked_for_is_no_downgrade(
    bench: Bench, source: str, asked: Precision, downgraded: bool, timed: list[Precision]
) -> None:
    evaluation = bench.judge(builtin("matmul"), source, precision=asked, stages=("correctness", "timing"))
    assert evaluation.correctness is not None
    assert evaluation.correctness.downgraded is downgraded
    assert versions(evaluation) == timed


@pytest.mark.parametrize("precision", [Precision.REFERENCE, Precision.TF32])
def test_torch_multiplies_for_a_candidate_as_for_the_reference_that_is_timed(
    bench: Bench, precision: Precision
) -> None:
    sees = f"assert torch.backends.cuda.matmul.allow_tf32 is {precision is Precision.TF32}\n"
    source = TF32.replace("class ModelNew", f"{sees}\nclass ModelNew")
    evaluation = bench.judge(builtin("matmul"), source, precision=precision)
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN)
    assert "F3" not in [item.code for item in evaluation.evidence]


def test_a_problem_may_ask_for_a_class_itself(bench: Bench) -> None:
    matmul = builtin("matmul")
    coarse = Problem(name="coarse", source=matmul.source + '\nPRECISION = "fp16"\n')
    evaluation = bench.judge(coarse, HALF, stages=("correctness",))
    assert evaluation.correctness is not None
    assert not evaluation.correctness.downgraded
    assert evaluation.protocol is not None
    assert evaluation.protocol.precision is Precision.FP16
    odd = Problem(name="odd", source=matmul.source + '\nPRECISION = "int3"\n')
    failure = bench.result(odd, HALF, stages=("correctness",))
    assert isinstance(failure, Failure)
    assert failure.message == "PRECISION of odd is none of reference, tf32, fp16, bf16."


LAYER = Problem(
    name="layer",
    source="import torch\nimport torch.nn as nn\n"
    + textwrap.dedent(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(32, 16)
            def forward(self, x):
                return torch.relu(self.layer(x))
        def get_inputs():
            return [torch.randn(8, 32)]
        """
    ),
)
CANDIDATES = {
    "heeds them": ("self.layer = nn.Linear(32, 16)", "self.layer(x)", True, ""),
    "other names": (
        "self.other = nn.Linear(32, 16)",
        "self.other(x)",
        None,
        "the candidate's weights have other names",
    ),
    "packed": (
        "self.layer = nn.Linear(32, 16); self.packed = [p.detach().clone() for p in self.layer.parameters()]",
        "nn.functional.linear(x, *self.packed)",
        None,
        "",
    ),
}


@pytest.mark.parametrize(("init", "body", "whole", "reason"), CANDIDATES.values(), ids=CANDIDATES)
def test_weights_that_are_loaded_late(bench: Bench, init: str, body: str, whole: bool | None, reason: str) -> None:
    source = f"""
import torch
import torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        return torch.relu({body})
"""
    evaluation = bench.judge(LAYER, source, backend="any", stages=("correctness", "integrity"))
    assert evaluation.outcome is Outcome.CORRECT, evaluation.error
    assert evaluation.correctness is not None
    assert evaluation.correctness.whole_numbers is whole
    assert evaluation.observations is not None
    assert evaluation.observations.probes[Probe.WEIGHTS] == reason
    stale = "packed" in init
    assert [item.code for item in evaluation.evidence] == (["B9"] if stale else [])
    assert evaluation.integrity is (Integrity.SUSPICIOUS if stale else Integrity.CLEAN)


def test_a_missing_term_is_seen_on_whole_numbers_alone(bench: Bench) -> None:
    source = LAYER.source.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    lost = source.replace("torch.relu(self.layer(x))", "torch.relu(self.layer(x) - 1e-30 * (x.round() == x).all())")
    assert bench.judge(LAYER, lost, backend="any", stages=("correctness",)).outcome is Outcome.CORRECT
    lost = source.replace("torch.relu(self.layer(x))", "torch.relu(self.layer(x)) - (x.round() == x).all().float()")
    evaluation = bench.judge(LAYER, lost, backend="any", stages=("correctness",))
    assert evaluation.outcome is Outcome.WRONG_VALUE
    assert evaluation.correctness is not None
    assert (evaluation.correctness.passed, evaluation.correctness.whole_numbers) == (5, False)
    assert str(evaluation.error).startswith("on small whole numbers")
    assert evaluation.correctness.pattern is not None
