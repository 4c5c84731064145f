"""Feedback: what is said, that it is always the same, never too long, and never about a detector."""

import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.cli import verdict
from drkernel_q.correctness import Correctness, ErrorPattern, Precision
from drkernel_q.evaluation import Baseline, BaselineTiming, Evaluation, Integrity, Outcome, Protocol, Timing
from drkernel_q.feedback import REJECTED, feedback, take_apart
from drkernel_q.observation import Evidence, Observations, Weight
from drkernel_q.profile import KernelProfile, Origin, Profile
from tests.values import a_failure, a_reply, a_request, an_environment, an_evaluation

RAISED = """Traceback (most recent call last):
  File "/opt/site/workers/harness/candidate.py", line 92, in serve
    reply = operations[message["op"]](message, fds) | {"ok": True}
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/drkq-x7f3/w/candidate.py", line 12, in forward
    return helper(x)
           ^^^^^^^^^
  File "/tmp/drkq-x7f3/w/candidate.py", line 5, in helper
    return x.missing
           ^^^^^^^^^
AttributeError: <Tensor at 0x7f12ab34cd> has no attribute 'missing'
"""
COMPILED = """Traceback (most recent call last):
  File "/opt/site/triton/language/core.py", line 42, in wrapper
    return fn(*args, **kwargs)
ValueError: Did you forget to add @triton.jit ?

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/tmp/drkq-x7f3/w/candidate.py", line 20, in forward
    kernel[(1,)](x, y)
  File "/opt/site/triton/runtime/jit.py", line 300, in run
    raise error
triton.compiler.errors.CompilationError: at 3:8:
def kernel(x, y):
    a = tl.load(x)
        ^
unsupported pointer
"""
SYNTAX = """Traceback (most recent call last):
  File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed
  File "/tmp/drkq-x7f3/w/candidate.py", line 3
    def f(:
          ^
SyntaxError: invalid syntax
"""


def failed(outcome: str, error: str, shown: Correctness | None = None) -> Evaluation:
    return an_evaluation(outcome, "unknown", error=error, correctness=shown)


def test_an_exception_is_shown_on_the_lines_of_the_kernel() -> None:
    assert feedback(failed("runtime_error", RAISED)).splitlines() == [
        "runtime error",
        "candidate.py, line 12, in forward:",
        "    return helper(x)",
        "           ^^^^^^^^^",
        "candidate.py, line 5, in helper:",
        "    return x.missing",
        "           ^^^^^^^^^",
        "AttributeError: <Tensor at 0x…> has no attribute 'missing'",
    ]


def test_a_compile_error_keeps_the_caret_of_the_compiler() -> None:
    assert feedback(failed("compile_error", COMPILED)).splitlines() == [
        "compile error",
        "candidate.py, line 20, in forward:",
        "    kernel[(1,)](x, y)",
        "triton.compiler.errors.CompilationError: at 3:8:",
        "def kernel(x, y):",
        "    a = tl.load(x)",
        "        ^",
        "unsupported pointer",
    ]


def test_a_syntax_error_has_its_line() -> None:
    assert feedback(failed("compile_error", SYNTAX)).splitlines() == [
        "compile error",
        "candidate.py, line 3:",
        "    def f(:",
        "          ^",
        "SyntaxError: invalid syntax",
    ]


@pytest.mark.parametrize("outcome", ["timeout", "crashed", "out_of_memory"])
def test_an_end_without_a_traceback_is_told_as_it_is(outcome: str) -> None:
    assert feedback(failed(outcome, "no answer within 20 s")) == f"{outcome.replace('_', ' ')}\nno answer within 20 s"


def test_a_long_message_loses_its_middle() -> None:
    text = "Error: first\n" + "\n".join(f"line {number}" for number in range(100))
    lines = feedback(failed("compile_error", text), 10_000).splitlines()
    assert lines[1:3] == ["Error: first", "[77 lines]"]
    assert lines[-1] == "line 99"
    assert len(lines) == 26


def test_where_values_are_wrong_is_said() -> None:
    shown = Correctness(
        trials=5,
        passed=2,
        precision_class="tf32",
        first_failure="largest error 3 of the row's scale at [1, 2]: expected 1, got 4",
        pattern=ErrorPattern(
            output=0, shape=(128, 64), wrong=512, elements=8192, region="the last 4 columns", looks="zeros"
        ),
    )
    assert feedback(failed("wrong_value", "", shown)).splitlines() == [
        "wrong values: 2 of 5 trials on random inputs passed",
        "Wrong: 512 of 8192 elements of output 0 (128x64): the last 4 columns; they are zeros.",
        "First failure: largest error 3 of the row's scale at [1, 2]: expected 1, got 4",
        "The errors are as large as those of TF32 arithmetic. "
        "tl.dot multiplies float32 in TF32 unless it is called with "
        'input_precision="ieee".',
    ]


def test_another_shape_is_named() -> None:
    shown = Correctness(trials=5, passed=0, first_failure="expected shape [4, 5], got [4]")
    assert feedback(failed("wrong_shape", "", shown)).splitlines()[1] == "First failure: expected shape [4, 5], got [4]"


def _times(precision: Precision, speedup: float) -> BaselineTiming:
    return BaselineTiming(
        baseline=Baseline.EAGER,
        precision=precision,
        reference_ms=0.5,
        speedup=speedup,
        speedup_low=speedup * 0.99,
        speedup_high=speedup * 1.01,
    )


def a_timing(*rows: BaselineTiming) -> Timing:
    first = rows[0].model_dump(include={"reference_ms", "speedup", "speedup_low", "speedup_high"})
    return Timing(
        **first, candidate_ms=0.25, candidate_iqr_ms=0.01, runs=60, blocks=6, drift=0.0, checked=18, baselines=rows
    )


def a_row(name: str, device_us: float, origin: Origin, launches: float = 1) -> KernelProfile:
    return KernelProfile(name=name, device_us=device_us, launches=launches, origin=origin)


def test_a_correct_kernel_is_told_its_speed_and_where_the_time_goes() -> None:
    rows = (a_row("own", 90.0, Origin.CANDIDATE), a_row("vectorized_elementwise_kernel", 10.0, Origin.TORCH, 2))
    profile = Profile(profile_ratio=0.9, launches=1, device_us=100, kernels=rows[::-1], window_us=250.0, busy_us=100.0)
    evaluation = an_evaluation(timing=a_timing(_times(Precision.REFERENCE, 2.0)), profile=profile)
    assert feedback(evaluation).splitlines() == [
        "correct: 5 of 5 trials on random inputs passed",
        "Speed: 2x over eager (95% interval 1.98 to 2.02): 0.25 ms against 0.5 ms",
        "Profile: 90.0% of the device time is in kernels of your own",
        "   90.0%  own (yours): 1 launch, 90 us",
        "   10.0%  vectorized_elementwise_kernel (torch): 2 launches, 10 us",
        "Most of the time is in your own.",
        "The device is idle for 60% of a call, between kernels.",
    ]


def test_a_downgrade_is_told_with_its_reason_and_its_own_baseline() -> None:
    shown = Correctness(trials=5, passed=5, precision_class="tf32", downgraded=True)
    timing = a_timing(_times(Precision.TF32, 0.9), _times(Precision.REFERENCE, 3.0))
    text = feedback(an_evaluation(correctness=shown, timing=timing))
    assert "products are made in TF32, and full precision is asked for" in text
    assert 'input_precision="ieee"' in text
    assert "0.9x over eager in TF32" in text
    assert "3x over eager (" in text
    asked = an_evaluation(correctness=shown, protocol=Protocol(precision=Precision.FP16))
    assert "float16 is asked for" in feedback(asked)


def test_many_kernels_are_cut_to_a_table() -> None:
    rows = tuple(a_row(f"kernel_{number}" + "x" * 80, 10.0 + number, Origin.OTHER) for number in range(30))
    text = feedback(an_evaluation(profile=Profile(profile_ratio=None, launches=0, device_us=1, kernels=rows)), 10_000)
    assert "22 more kernels" in text
    assert len(text.splitlines()) == 11


def test_a_result_that_could_not_be_examined_says_so() -> None:
    assert "not examined in full" in feedback(an_evaluation(integrity="unknown"))
    assert "not examined" not in feedback(an_evaluation())


def test_the_command_shows_it_and_says_when_there_is_no_verdict() -> None:
    request = a_request()
    evaluation = an_evaluation(integrity="rejected")
    assert verdict.told(request, a_reply(request, evaluation)) == REJECTED
    assert "no verdict (infrastructure)" in verdict.told(request, a_failure(request))


letters = st.text(string.ascii_lowercase + " \n\t^_=:.0", max_size=200)
numbers = st.floats(0, 1e9)
patterns = st.none() | st.builds(
    ErrorPattern,
    output=st.integers(0, 9),
    shape=st.tuples(st.integers(0, 99)),
    wrong=st.integers(0, 99),
    elements=st.integers(0, 99),
    region=letters,
    looks=st.none() | letters,
)
shows = st.none() | st.builds(
    Correctness,
    trials=st.integers(0, 9),
    passed=st.integers(0, 9),
    precision_class=st.sampled_from([None, "exact", "fp32", "tf32", "fp16", "bf16", "lower"]),
    downgraded=st.booleans(),
    first_failure=st.none() | letters,
    pattern=patterns,
)
kernels = st.lists(
    st.builds(KernelProfile, name=letters, device_us=numbers, launches=numbers, origin=st.sampled_from(Origin)),
    max_size=12,
).map(tuple)
profiles = st.none() | st.builds(
    Profile,
    profile_ratio=st.none() | st.floats(0, 1),
    launches=numbers,
    device_us=numbers,
    kernels=kernels,
    window_us=st.none() | numbers,
    busy_us=st.none() | numbers,
)
CODES = ["A1", "A14", "B5", "C4", "D10", "E13", "F1", "G1"]
evidence = st.lists(
    st.builds(
        Evidence, code=st.sampled_from(CODES), weight=st.sampled_from(Weight), detail=st.just("SEEN BY THE DETECTOR")
    ),
    max_size=4,
).map(tuple)


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    seen = draw(evidence)
    optional: dict[str, Any] = {"timing": draw(st.none() | st.just(a_timing(_times(Precision.TF32, 2.0))))}
    return Evaluation(
        outcome=draw(st.sampled_from(Outcome)),
        integrity=draw(st.sampled_from(Integrity)),
        evidence=seen,
        observations=Observations(seen=seen, first_wrong="SEEN BY THE DETECTOR"),
        protocol=draw(st.none() | st.just(Protocol())),
        correctness=draw(shows),
        profile=draw(profiles),
        environment=an_environment(),
        error=draw(st.none() | letters | st.just(RAISED)),
        stdout="PRINTED BY THE KERNEL",
        **optional,
    )


@given(evaluations(), st.integers(0, 3000))
def test_feedback_fits_is_the_same_again_and_names_no_detector(evaluation: Evaluation, limit: int) -> None:
    text = feedback(evaluation, limit)
    assert len(text) <= limit
    assert text == feedback(Evaluation.model_validate_json(evaluation.model_dump_json(round_trip=True)), limit)
    assert not re.search(r"\b[A-H]\d{1,2}\b|DETECTOR|PRINTED", text)
    if evaluation.integrity in (Integrity.REJECTED, Integrity.SUSPICIOUS):
        assert REJECTED.startswith(text.removesuffix("…"))
    assert feedback(evaluation, 10**6).startswith(text.removesuffix("…"))


@given(st.text(max_size=300) | st.just(RAISED) | st.just(COMPILED))
def test_any_text_can_be_taken_apart(error: str) -> None:
    frames, message = take_apart(error)
    assert all(frame.line >= 0 for frame in frames)
    assert not frames or message is not None
    feedback(failed("runtime_error", error), 500)
