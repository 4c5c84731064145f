"""Expected: the facts that a solution of a quality should have, where nobody judges it: to learn to read feedback from.

They are made up, within what a GPU shows of such kernels, and are never stored: no reward may come from them.
"""

import random

from drkernel_q.correctness import Correctness, ErrorPattern
from drkernel_q.curriculum.exercise import Quality, Solution
from drkernel_q.environment import Environment
from drkernel_q.evaluation import Baseline, BaselineTiming, Evaluation, Integrity, Outcome, Timing
from drkernel_q.profile import KernelProfile, Origin, Profile

#: Kind of device of what was never measured.
NOWHERE = "nowhere"
TRIALS = 5
#: Lowest and highest speedup, and profile ratio, of correct kernels.
_SPEEDS: dict[Quality, tuple[float, float]] = {
    Quality.FALLBACK: (0.98, 1.02),
    Quality.DECOY: (0.7, 1.0),
    Quality.LAZY: (0.8, 1.15),
    Quality.PARTIAL: (1.0, 1.8),
    Quality.NAIVE: (0.3, 1.6),
    Quality.FUSED: (1.3, 4.0),
}
_RATIOS: dict[Quality, tuple[float, float]] = {
    Quality.LAZY: (0.1, 0.5),
    Quality.PARTIAL: (0.4, 0.9),
    Quality.NAIVE: (1.0, 1.0),
    Quality.FUSED: (1.0, 1.0),
}
_LINES = (
    "class ModelNew(nn.Module)",
    "def kernel((x_ptr, out_ptr, n, BLOCK: tl.constexpr):",
    "tl.store(output_ptr + n, x)",
)
#: How a kernel fails, where, and by what: most do not compile.
_FAILURES = (
    (Outcome.COMPILE_ERROR, "", "SyntaxError: invalid syntax"),
    (Outcome.COMPILE_ERROR, ", in forward", "CompilationError: at 9:4"),
    (Outcome.COMPILE_ERROR, "", "NameError: name 'tl' is not defined"),
    (Outcome.RUNTIME_ERROR, ", in forward", "TypeError: missing a required argument"),
)
_SCATTERED = "all over the output (less than 1% of the elements there)"
_NOTHING = Environment(
    device="none", device_name=NOWHERE, device_kind=NOWHERE, host="", python="", torch="", triton="", drkq=""
)


def expected(solution: Solution, draw: random.Random) -> Evaluation:
    """Make up the facts of a solution; what its quality leaves open is drawn."""
    quality = solution.quality
    if quality is Quality.BROKEN:
        outcome, place, kind = draw.choice(_FAILURES)
        where = f'Traceback (most recent call last):\n  File "/tmp/candidate.py", line {draw.randint(8, 36)}{place}'
        error = f"{where}\n    {draw.choice(_LINES)}\n{kind}"
        return Evaluation(outcome=outcome, integrity=Integrity.UNKNOWN, environment=_NOTHING, error=error)
    if quality in (Quality.EDGE, Quality.WRONG):
        return _wrong(draw, everywhere=quality is Quality.WRONG)
    honest = Integrity.CLEAN if quality.good else Integrity.REJECTED
    return Evaluation(
        outcome=Outcome.CORRECT,
        integrity=honest,
        environment=_NOTHING,
        correctness=Correctness(trials=TRIALS, passed=TRIALS),
        timing=_timing(draw.uniform(*_SPEEDS[quality]), draw.uniform(0.01, 0.2)),
        profile=_profile(draw.uniform(*_RATIOS.get(quality, (0.0, 0.0)))),
    )


def _wrong(draw: random.Random, *, everywhere: bool) -> Evaluation:
    shape = (draw.randrange(500, 9000), draw.randrange(500, 9000))
    elements = shape[0] * shape[1]
    last = f"the last {draw.randint(2, 500)} columns"
    share = draw.randint(40, 99)
    if everywhere:
        wrong, regions = elements, ["every element", f"all over the output ({share}% of the elements there)"]
    else:
        wrong = draw.randrange(1, elements // 2)
        regions = [last, f"the last row, {last}", "the last row, the last column", _SCATTERED]
    pattern = ErrorPattern(output=0, shape=shape, wrong=wrong, elements=elements, region=draw.choice(regions))
    shown = Correctness(trials=TRIALS, passed=0, pattern=pattern)
    return Evaluation(outcome=Outcome.WRONG_VALUE, integrity=Integrity.UNKNOWN, environment=_NOTHING, correctness=shown)


def _profile(ratio: float) -> Profile:
    own = KernelProfile(name="kernel", device_us=100 * ratio, launches=1, origin=Origin.CANDIDATE)
    return Profile(profile_ratio=ratio, launches=1, device_us=100, kernels=(own,))


def _timing(speedup: float, candidate_ms: float) -> Timing:
    spread = {"speedup": speedup, "speedup_low": speedup * 0.99, "speedup_high": speedup * 1.01}
    eager = BaselineTiming(baseline=Baseline.EAGER, reference_ms=candidate_ms * speedup, **spread)
    return Timing(
        reference_ms=candidate_ms * speedup,
        candidate_ms=candidate_ms,
        candidate_iqr_ms=candidate_ms * 0.01,
        runs=100,
        blocks=6,
        drift=0.0,
        checked=100,
        baselines=(eager,),
        **spread,
    )
