"""Trials: correctness on secret fresh inputs, and the hack check in both module modes."""

import secrets
from typing import NamedTuple

from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Correctness, Outcome, Protocol
from workers import correctness, integrity
from workers.correctness import Comparison
from workers.integrity import Finding, Weight
from workers.reference import Reference
from workers.session import Answer, Session, pack_inputs


class TrialResult(NamedTuple):
    """What the correctness trials showed."""

    outcome: Outcome
    correctness: Correctness
    detail: str | None
    findings: list[Finding]
    own_launches: int
    """Launches of the candidate's own Triton functions, over all trials."""
    other_launches: int
    seconds: float
    """Wall time of the last trial's call, as the candidate's process saw it."""


def check_inputs(reference: Reference) -> None:
    """Check that the inputs are usable, and are decided by the seed alone.

    Raises:
        BadProblem: they are not; secret inputs could not be drawn again for the comparison.
    """
    seed = secrets.randbits(63)
    _, first, _, _ = pack_inputs(reference.inputs(seed))
    _, second, _, _ = pack_inputs(reference.inputs(seed))
    same = len(first) == len(second) and all(map(integrity.same_bits, first, second))
    if not same:
        raise BadProblem(f"get_inputs() of {reference.name} draws other values under the same torch seed.")


def run_trials(session: Session, reference: Reference, protocol: Protocol) -> TrialResult:
    """Run all trials, spread over the weight seeds, until one fails."""
    findings: dict[Finding, None] = {}
    results: list[Comparison] = []
    own = other = 0
    seconds = 0.0
    degenerate = False
    for number in range(protocol.trials):
        if number % -(-protocol.trials // protocol.weight_seeds) == 0:
            seed = secrets.randbits(63)
            reference.build(seed)
            session.build(reference, seed)
        inputs = reference.inputs(secrets.randbits(63))
        expected = reference.expected(inputs)
        degenerate = degenerate or (number == 0 and correctness.is_degenerate(expected))
        answer = session.call(inputs, expected, train=reference.train)
        findings |= dict.fromkeys(_output_findings(answer, reference))
        own, other, seconds = own + answer.own_launches, other + answer.other_launches, answer.seconds
        if answer.outputs is None:
            results.append(Comparison(answer.outcome, answer.detail, allclose=False))
        else:
            results.append(correctness.compare(expected, answer.outputs))
        if results[-1].outcome is not Outcome.CORRECT:
            break
    if degenerate:
        findings[Finding("G1", Weight.SOFT, "zeros or a constant would pass for this problem's outputs")] = None
    return TrialResult(
        outcome=results[-1].outcome,
        correctness=_summarize(results, protocol.trials),
        detail=results[-1].detail,
        findings=list(findings),
        own_launches=own,
        other_launches=other,
        seconds=seconds,
    )


def _summarize(results: list[Comparison], planned: int) -> Correctness:
    passed = sum(result.outcome is Outcome.CORRECT for result in results)
    measured = [result for result in results if result.relative_l2 < float("inf") and result.tolerance > 0]
    closest = max(measured, key=lambda result: result.max_error / result.tolerance, default=None)
    errors = [result.relative_l2 for result in measured]
    exact = passed == planned and not measured
    worst = 0.0 if exact else max(errors, default=None)
    return Correctness(
        trials=planned,
        passed=passed,
        max_error=0.0 if exact else max((result.max_error for result in measured), default=None),
        relative_l2=worst,
        tolerance=None if closest is None else closest.tolerance,
        precision_class=None if worst is None else correctness.precision_class(worst),
        allclose=all(result.allclose for result in results) if len(results) else None,
        first_failure=results[-1].detail if passed < len(results) else None,
    )


def _output_findings(answer: Answer, reference: Reference) -> list[Finding]:
    found = []
    for code in answer.codes:
        if code in reference.own_codes:
            continue
        weight, detail = integrity.OUTPUT_RULES.get(code, (Weight.HARD, "torch was left in a mode of the candidate's"))
        found.append(Finding(code, weight, detail))
    if answer.changed and not reference.changes_inputs:
        found.append(Finding("C4", Weight.SOFT, "the inputs were written to; the reference leaves them alone"))
    return found


def check_modes(  # noqa: PLR0911 - one case a line
    session: Session, reference: Reference, protocol: Protocol, result: TrialResult, source: str
) -> list[Finding]:
    """Look at which Triton kernels run in `train()` and in `eval()` (the hack check of the article, section 4.3)."""
    if protocol.backend != "triton":
        return []
    inputs = reference.inputs(secrets.randbits(63))
    scored, other = ("train", "eval") if reference.train else ("eval", "train")
    answer = session.call(inputs, reference.expected(inputs), train=not reference.train)
    times = f"{scored} {result.seconds * 1e3:.3g} ms, {other} {answer.seconds * 1e3:.3g} ms end to end"
    if result.own_launches:
        if answer.own_launches:
            return []
        detail = f"the candidate's Triton kernels run in {scored}() and not in {other}() ({times})"
        return [Finding("A9", Weight.NOTE, detail)]
    if answer.own_launches:
        detail = f"the candidate's Triton kernels run in {other}() and not in {scored}(), which is scored ({times})"
        return [Finding("A9", Weight.HARD, detail)]
    if result.other_launches:
        return [Finding("A22", Weight.HARD, "the only Triton kernels that ran are not of the candidate's own file")]
    if "@triton.jit" in source:
        return [Finding("A4", Weight.HARD, "Triton kernels are defined, and none was launched")]
    return [Finding("A1", Weight.HARD, "no Triton kernel of the candidate ran: torch does all the work")]
