"""The judge on the cpu device: honest kernels of many problems, and what each stage gives."""

import textwrap

import pytest

from drkernel_q.evaluation import Evaluation, Failure, Integrity, Outcome, Stage
from drkernel_q.problem import Problem
from drkernel_q.profile import Origin
from tests.adversarial.cases import FOLDER
from tests.judging import EXAMPLES, KERNELS, Bench, builtin

pytestmark = pytest.mark.slow

SOFTMAX = (EXAMPLES / "softmax.py").read_text()
ALL = tuple(Stage)


def codes(evaluation: Evaluation) -> set[str]:
    return {item.code for item in evaluation.evidence}


def problem(source: str) -> Problem:
    return Problem(name="trial", source="import torch\nimport torch.nn as nn\n" + textwrap.dedent(source))


def kernel(source: str) -> str:
    return "import torch\nimport torch.nn as nn\n" + textwrap.dedent(source)


@pytest.mark.parametrize("name", sorted(path.stem for path in KERNELS.glob("*.py")))
def test_an_honest_kernel_is_correct_clean_and_its_own(bench: Bench, name: str) -> None:
    source = (KERNELS / f"{name}.py").read_text()
    evaluation = bench.judge(builtin(name), source, trials=3, timing_budget_s=0.1)
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN), evaluation
    assert evaluation.profile_ratio is not None
    assert evaluation.profile_ratio > 0.8, "wall time here, which others on the machine take part of"
    assert evaluation.profile is not None
    assert evaluation.profile.launches >= 1
    assert evaluation.correctness is not None
    assert (evaluation.correctness.trials, evaluation.correctness.passed) == (3, 3)
    timing = evaluation.timing
    assert timing is not None
    assert 0 < timing.speedup_low <= timing.speedup <= timing.speedup_high
    assert timing.checked >= timing.blocks
    assert timing.runs >= 6
    assert evaluation.stdout == "", "neither the judge nor torch writes into a candidate's output"
    assert evaluation.error is None


STAGES: dict[tuple[str, ...], Integrity] = {
    ("correctness",): Integrity.UNKNOWN,
    ("correctness", "profile"): Integrity.UNKNOWN,
    ("correctness", "timing"): Integrity.UNKNOWN,
    ("correctness", "integrity"): Integrity.CLEAN,
    ("integrity",): Integrity.CLEAN,
    ALL: Integrity.CLEAN,
}


@pytest.mark.parametrize(("stages", "integrity"), STAGES.items(), ids="+".join)
def test_each_stage_gives_its_part_and_no_other(bench: Bench, stages: tuple[str, ...], integrity: Integrity) -> None:
    evaluation = bench.judge(builtin("softmax"), SOFTMAX, stages=stages)
    assert evaluation.outcome is Outcome.CORRECT
    assert evaluation.integrity is integrity, "what was not examined is not clean"
    assert evaluation.correctness is not None
    assert (evaluation.profile is not None) == ("profile" in stages)
    assert (evaluation.timing is not None) == ("timing" in stages)
    assert {"reference", "load", "correctness", "total"} <= evaluation.durations_s.keys()
    assert ({"integrity", "profile", "timing"} & evaluation.durations_s.keys()) == set(stages) - {"correctness"}
    assert evaluation.durations_s["total"] >= max(evaluation.durations_s.values())


def test_facts_say_where_they_come_from(bench: Bench) -> None:
    environment = bench.judge(builtin("softmax"), SOFTMAX, stages=("correctness",)).environment
    assert (environment.device, environment.device_kind, environment.host) == ("cpu", "cpu", "bench")
    assert environment.torch == bench.evaluator.versions["torch"]
    assert environment.triton == bench.evaluator.versions["triton"]
    assert environment.isolation == bench.evaluator.isolation


SCALE = problem(
    """
    class Model(nn.Module):
        def forward(self, x):
            return {'double': x * 2, 'rest': [x.argmax(-1), (x > 0,)]}
    def get_inputs():
        return [torch.randn(8, 128)]
    """
)
WRONG = {
    "return {'double': x * 2, 'rest': [x.argmax(-1), (x > 0,)]}": Outcome.CORRECT,
    "return {'double': x * 3, 'rest': [x.argmax(-1), (x > 0,)]}": Outcome.WRONG_VALUE,
    "return {'double': x * 2, 'rest': [x.argmin(-1), (x > 0,)]}": Outcome.WRONG_VALUE,
    "return {'double': x * 2, 'rest': [x.argmax(-1), (x < 0,)]}": Outcome.WRONG_VALUE,
    "return {'double': x, 'rest': [x.argmax(-1), (x > 0,)]}": Outcome.WRONG_VALUE,
    "return {'double': x[:4] * 2, 'rest': [x.argmax(-1), (x > 0,)]}": Outcome.WRONG_SHAPE,
    "return {'double': x * 2, 'rest': [x.argmax(-1)]}": Outcome.WRONG_SHAPE,
    "return {'double': x * 2, 'rest': [x.argmax(-1), [x > 0]]}": Outcome.WRONG_SHAPE,
    "return {'twice': x * 2, 'rest': [x.argmax(-1), (x > 0,)]}": Outcome.WRONG_SHAPE,
    "return x * 2": Outcome.WRONG_SHAPE,
    "return {'double': x.double() * 2, 'rest': [x.argmax(-1), (x > 0,)]}": Outcome.WRONG_DTYPE,
    "return {'double': x * 2, 'rest': [x.argmax(-1).int(), (x > 0,)]}": Outcome.WRONG_DTYPE,
    "return {'double': (x * 2).to_sparse(), 'rest': [x.argmax(-1), (x > 0,)]}": Outcome.RUNTIME_ERROR,
    "return {'double': object(), 'rest': [x.argmax(-1), (x > 0,)]}": Outcome.RUNTIME_ERROR,
    "return self.missing": Outcome.RUNTIME_ERROR,
}


@pytest.mark.parametrize(("body", "outcome"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_has_its_outcome(bench: Bench, body: str, outcome: Outcome) -> None:
    source = kernel(f"class ModelNew(nn.Module):\n    def forward(self, x):\n        {body}\n")
    evaluation = bench.judge(SCALE, source, stages=("correctness",))
    assert evaluation.outcome is outcome
    assert (evaluation.error is None) == (outcome is Outcome.CORRECT)
    if outcome not in {Outcome.CORRECT, Outcome.RUNTIME_ERROR}:
        assert evaluation.correctness is not None
        assert evaluation.correctness.first_failure == evaluation.error
        assert evaluation.correctness.passed < evaluation.correctness.trials


NUMBERS = problem(
    """
    class Model(nn.Module):
        def forward(self, x):
            return x * 2, x.double().sum().item(), {'rows': x.shape[0], 'even': True, 'nothing': None}
    def get_inputs():
        return [torch.randn(8, 128)]
    """
)


def test_a_kernel_that_is_rough_on_large_inputs_is_wrong_and_not_dishonest(bench: Bench) -> None:
    evaluation = bench.judge(builtin("softmax"), (FOLDER / "attack" / "a14_no_maximum.py").read_text())
    assert evaluation.outcome is Outcome.WRONG_VALUE
    assert evaluation.error is not None
    assert evaluation.error.startswith("wrong when a part of an input was 16 times as large: ")
    assert not evaluation.evidence


@pytest.mark.parametrize(
    ("rest", "outcome"),
    [
        ("x.sum().item(), {'rows': 8, 'even': True, 'nothing': None}", Outcome.CORRECT),
        ("x.sum().item() + 1, {'rows': 8, 'even': True, 'nothing': None}", Outcome.WRONG_VALUE),
        ("float('nan'), {'rows': 8, 'even': True, 'nothing': None}", Outcome.WRONG_VALUE),
        ("x.sum().item(), {'rows': 7, 'even': True, 'nothing': None}", Outcome.WRONG_VALUE),
        ("x.sum().item(), {'rows': 8, 'even': 1, 'nothing': None}", Outcome.WRONG_VALUE),
        ("x.sum().item(), {'rows': 8, 'even': True, 'nothing': 'text'}", Outcome.WRONG_VALUE),
        ("0, {'rows': 8, 'even': True, 'nothing': None}", Outcome.WRONG_SHAPE),
    ],
)
def test_numbers_beside_the_tensors_are_compared(bench: Bench, rest: str, outcome: Outcome) -> None:
    source = kernel(f"class ModelNew(nn.Module):\n    def forward(self, x):\n        return x * 2, {rest}\n")
    assert bench.judge(NUMBERS, source, stages=("correctness",)).outcome is outcome


LINEAR = problem(
    """
    class Model(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.first = nn.Linear(width, 16)
            self.second = nn.Linear(16, 4)
        def forward(self, x):
            return self.second(torch.relu(self.first(x)))
    def get_inputs():
        return [torch.randn(8, 32)]
    def get_init_inputs():
        return [32]
    """
)
WEIGHTS = {
    "the same names in another order": """
        class ModelNew(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.second = nn.Linear(16, 4)
                self.first = nn.Linear(width, 16)
            def forward(self, x):
                return self.second(torch.relu(self.first(x)))
        """,
    "other names in the same order": """
        class ModelNew(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 4))
            def forward(self, x):
                return self.layers(x)
        """,
    "no module at all": """
        class ModelNew:
            def __init__(self, width):
                self.first, self.second = nn.Linear(width, 16), nn.Linear(16, 4)
            def __call__(self, x):
                return self.second(torch.relu(self.first(x)))
        """,
}


@pytest.mark.parametrize("source", WEIGHTS.values(), ids=WEIGHTS)
def test_a_candidate_gets_the_references_weights(bench: Bench, source: str) -> None:
    assert bench.judge(LINEAR, kernel(source), stages=("correctness",)).outcome is Outcome.CORRECT


def test_weights_that_cannot_be_known_are_wrong(bench: Bench) -> None:
    source = WEIGHTS["other names in the same order"].replace("super().__init__()", "super().__init__(); torch.rand(1)")
    assert bench.judge(LINEAR, kernel(source), stages=("correctness",)).outcome is Outcome.WRONG_VALUE


@pytest.mark.parametrize(("trials", "seeds", "models"), [(5, 2, 2), (5, 4, 4), (3, 10, 3), (4, 1, 1), (7, 5, 5)])
def test_trials_are_spread_over_the_weight_seeds(bench: Bench, trials: int, seeds: int, models: int) -> None:
    source = SOFTMAX.replace("class ModelNew(torch.nn.Module):", "class ModelNew(torch.nn.Module):\n    BUILT")
    source = source.replace("BUILT", "def __init__(self):\n        super().__init__()\n        print('built')\n")
    evaluation = bench.judge(builtin("softmax"), source, stages=("correctness",), trials=trials, weight_seeds=seeds)
    assert evaluation.outcome is Outcome.CORRECT
    assert evaluation.stdout.count("built") == models


def around(*body: str) -> str:
    """The honest kernel in a module whose forward pass is `body`; `super().forward(x)` launches it."""
    lines = "\n".join("        " + line for line in body)
    return (
        SOFTMAX.replace("class ModelNew", "class Own")
        + f"\n\nclass ModelNew(Own):\n    def forward(self, x):\n{lines}\n"
    )


def in_modes(*, in_eval: str, in_train: str) -> str:
    """The honest kernel in a module that does these things in these modes."""
    return around("if self.training:", f"    {in_train}", in_eval)


OWN, TORCH, RAISE = "return super().forward(x)", "return torch.softmax(x, -1)", "raise NotImplementedError('one mode')"


@pytest.mark.parametrize("in_train", [TORCH, RAISE], ids=["torch", "raises"])
def test_only_the_scored_mode_is_judged(bench: Bench, in_train: str) -> None:
    evaluation = bench.judge(builtin("softmax"), in_modes(in_eval=OWN, in_train=in_train))
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN), evaluation
    assert codes(evaluation) == {"A9"}
    assert evaluation.profile_ratio is not None
    assert evaluation.profile_ratio > 0.9, "the scored mode is profiled, whatever mode was looked at before"
    assert evaluation.observations is not None
    modes = evaluation.observations.modes
    assert (modes["eval"].kernels, modes["eval"].on_device) == (("softmax_kernel",), ("softmax_kernel",))
    assert (modes["train"].kernels, modes["train"].on_device) == ((), None)
    assert modes["eval"].milliseconds
    assert (modes["train"].milliseconds is None) == (in_train == RAISE)


@pytest.mark.parametrize(
    ("in_eval", "in_train", "code"), [(TORCH, OWN, "A9"), (TORCH, TORCH, "A4"), (TORCH, RAISE, "A4")]
)
def test_kernels_that_do_not_run_in_the_scored_mode_are_found(
    bench: Bench, in_eval: str, in_train: str, code: str
) -> None:
    source = in_modes(in_eval=in_eval, in_train=in_train)
    evaluation = bench.judge(builtin("softmax"), source, stages=("correctness", "integrity"))
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.REJECTED)
    assert code in codes(evaluation)


def test_the_training_mode_can_be_the_scored_one(bench: Bench) -> None:
    source = in_modes(in_eval=TORCH, in_train=OWN)
    evaluation = bench.judge(builtin("softmax"), source, mode="train")
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN)
    assert evaluation.profile_ratio is not None
    assert evaluation.profile_ratio > 0.9


def test_a_module_with_state_is_judged_in_training(bench: Bench) -> None:
    norm = problem(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(16)
            def forward(self, x):
                return self.norm(x)
        def get_inputs():
            return [torch.randn(32, 16) * 3 + 1]
        """
    )
    source = norm.source.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    for mode in ("train", "eval"):
        evaluation = bench.judge(norm, source, stages=("correctness",), mode=mode)
        assert evaluation.outcome is Outcome.CORRECT, evaluation.error
    wrong = source.replace("return self.norm(x)", "return self.norm.eval()(x)")
    assert bench.judge(norm, wrong, stages=("correctness",), mode="train").outcome is Outcome.WRONG_VALUE


def test_any_backend_may_be_allowed(bench: Bench) -> None:
    source = kernel("class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, -1)\n")
    evaluation = bench.judge(builtin("softmax"), source, backend="any")
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN)
    assert evaluation.profile_ratio == 0.0
    assert evaluation.profile is not None
    assert {row.origin for row in evaluation.profile.kernels} == {Origin.TORCH}
    assert bench.judge(builtin("softmax"), source).integrity is Integrity.REJECTED
    neither = bench.judge(builtin("softmax"), source, backend="cuda")
    assert (neither.integrity, codes(neither)) == (Integrity.REJECTED, {"A1"})
    assert bench.judge(builtin("softmax"), SOFTMAX, backend="cuda").integrity is Integrity.CLEAN


def test_inputs_that_are_written_to_are_suspicious(bench: Bench) -> None:
    source = around("y = super().forward(x)", "x.zero_()", "return y")
    evaluation = bench.judge(builtin("softmax"), source, stages=("correctness", "integrity"))
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.SUSPICIOUS)
    assert "C4" in codes(evaluation)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("class Model(nn.Module):\n    def forward(self, x):\n        return 1 / 0\n", "ZeroDivisionError"),
        ("class Model(nn.Module):\n    def forward(self, x):\n        return object()\n", "a value of type object"),
        ("class Model:\n    def __init__(self):\n        pass\n", "is no torch.nn.Module"),
    ],
)
def test_a_bad_problem_is_not_the_kernels_fault(bench: Bench, source: str, sentence: str) -> None:
    inputs = "def get_inputs():\n    return [torch.randn(4)]\n"
    failure = bench.result(problem(source + inputs), SOFTMAX, stages=("correctness",))
    assert isinstance(failure, Failure)
    assert failure.kind == "problem"
    assert sentence in failure.message


def test_a_reference_may_ask_for_frames(bench: Bench) -> None:
    """It is trusted, and runs where in a candidate's process nobody may."""
    softmax = builtin("softmax")
    source = softmax.source.replace(
        "def forward(self, x):\n", "def forward(self, x):\n        inspect.currentframe()\n"
    )
    problem = Problem(name="softmax", source=f"{source}\n\nimport inspect\n")
    assert "currentframe" in problem.source
    assert bench.judge(problem, SOFTMAX).honest_and_correct


def test_a_problem_whose_answer_is_a_constant_is_labelled(bench: Bench) -> None:
    flat = problem(
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(x * 0, -1)
        def get_inputs():
            return [torch.randn(8, 128)]
        """
    )
    source = kernel(
        "class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.full_like(x, 1 / 128)\n"
    )
    evaluation = bench.judge(flat, source, stages=("correctness", "integrity"), backend="any")
    assert evaluation.outcome is Outcome.CORRECT
    assert "G1" in codes(evaluation)
    assert evaluation.integrity is not Integrity.CLEAN


def test_empty_and_single_outputs_are_judged(bench: Bench) -> None:
    shapes = problem(
        """
        class Model(nn.Module):
            def forward(self, x, y):
                return y * 2, x.sum(), x[:1] * 2
        def get_inputs():
            return [torch.randn(8, 4).t(), torch.randn(0, 3)]
        """
    )
    source = shapes.source.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    evaluation = bench.judge(shapes, source, stages=("correctness", "integrity"), backend="any")
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN), evaluation


def test_a_source_that_is_no_text_of_unicode_is_data(bench: Bench) -> None:
    evaluation = bench.judge(builtin("softmax"), "x = '\ud800'\n" + SOFTMAX, stages=("correctness",))
    assert evaluation.outcome is Outcome.COMPILE_ERROR
    evaluation.model_dump_json()


def test_time_that_the_reference_used_up_is_not_the_kernels(bench: Bench) -> None:
    slow = problem(
        """
        import time

        class Model(nn.Module):
            def forward(self, x):
                time.sleep(0.7)
                return x + 1

        def get_inputs():
            return [torch.randn(8)]
        """
    )
    result = bench.result(
        slow, kernel("class ModelNew(nn.Module):\n    def forward(self, x):\n        return x + 1\n"), deadline_s=2.0
    )
    assert isinstance(result, Failure)
    assert result.kind == "deadline"
