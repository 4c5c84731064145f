"""Trials: correctness on secret fresh inputs."""

import secrets
from collections.abc import Iterable
from typing import NamedTuple

from drkernel_q.correctness import Correctness, Precision
from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Outcome, Protocol
from drkernel_q.observation import Weight
from workers.comparison import correctness, measure
from workers.comparison.correctness import Comparison
from workers.comparison.measure import Expected
from workers.comparison.reference import Reference
from workers.exchange import integrity
from workers.exchange.integrity import Finding
from workers.harness import state
from workers.judging import probe
from workers.judging.answer import Answer
from workers.judging.session import Session, pack_inputs


class TrialResult(NamedTuple):
    """What the correctness trials showed."""

    outcome: Outcome
    precision: Precision
    """The class that the outputs are right in."""
    correctness: Correctness
    detail: str | None
    findings: list[Finding]
    own_launches: int
    """Launches of the candidate's own Triton functions, over all trials."""
    own_names: frozenset[str]
    """Their names."""
    last_launches: int
    """Own launches in the last trial: none where a CUDA graph is replayed."""
    other_launches: int
    seeds: dict[str, list[int]]
    """Those of the weights and of the trials' inputs."""
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
    """Run all trials, spread over the weight seeds, until one fails; then call once more on the inputs of the last.

    Every second trial puts its inputs into the tensors of the one before, behind their backs: same objects, addresses
    and version counters, other contents (the freshness probe, tricks B1 and B6).
    """
    findings: dict[Finding, None] = {}
    results: list[Comparison] = []
    answers: list[Answer] = []
    degenerate = False
    drawn: dict[str, list[int]] = {"weights": [], "trials": []}
    seeds = [number * protocol.weight_seeds // protocol.trials for number in range(protocol.trials)]
    for number, seed in enumerate(seeds):
        if seed not in seeds[:number]:
            drawn["weights"].append(build(session, reference))
        drawn["trials"].append(secrets.randbits(63))
        inputs = reference.inputs(drawn["trials"][-1])
        expected = reference.expected(inputs)
        degenerate = degenerate or (number == 0 and correctness.is_degenerate(expected))
        answers.append(session.call(inputs, expected, train=reference.train, reuse=number % 2 == 1))
        findings |= dict.fromkeys(findings_of(answers[-1], reference))
        results.append(compare(expected, answers[-1]))
        if results[-1].outcome is not Outcome.CORRECT:
            break
    else:
        answers.append(session.call(inputs, expected, train=reference.train))
        results.append(_compare_again(expected, answers[-1]))
        findings |= dict.fromkeys([*findings_of(answers[-1], reference), *_differences(*answers[-2:])])
    if degenerate:
        findings[Finding("G1", Weight.SOFT, "zeros or a constant would pass for this problem's outputs")] = None
    precision = max((result.precision for result in results), key=list(Precision).index)
    reference.narrow(precision)
    if precision is Precision.TF32 and results[-1].outcome is Outcome.CORRECT and _has_narrow_range(session, reference):
        precision = Precision.FP16
    summary = _summarize(results, protocol, precision)
    if summary.downgraded:
        asked = protocol.precision.value
        detail = f"the outputs are right as products in {precision.value} make them, {asked} is asked for"
        findings[Finding("F1", Weight.NOTE, detail)] = None
    return TrialResult(
        outcome=results[-1].outcome,
        precision=precision,
        correctness=summary,
        detail=results[-1].detail,
        findings=list(findings),
        own_launches=sum(answer.own_launches for answer in answers),
        own_names=frozenset().union(*(answer.own_names for answer in answers)),
        last_launches=answers[-1].own_launches,
        other_launches=sum(answer.other_launches for answer in answers),
        seeds=drawn,
        seconds=answers[-1].seconds,
    )


def _compare_again(expected: Expected, answer: Answer) -> Comparison:
    """Compare outputs for the same inputs, made with another pattern in the memory that was free (C1, C2)."""
    result = compare(expected, answer)
    return result if result.detail is None else result._replace(detail=f"called again on equal inputs: {result.detail}")


def _differences(first: Answer, second: Answer) -> list[Finding]:
    """Note where two calls on equal inputs do not give equal bits, as sums in the order of arrival do not."""
    pairs = zip(first.outputs or (), second.outputs or (), strict=False)
    if all(integrity.same_bits(left, right) for left, right in pairs):
        return []
    return [Finding("C7", Weight.NOTE, "two calls on equal inputs do not give equal bits")]


def build(session: Session, reference: Reference) -> int:
    """Make both models anew, under a fresh seed of the weights, which is returned."""
    seed = secrets.randbits(63)
    reference.build(seed)
    session.build(reference, seed)
    return seed


def output_bytes(reference: Reference, outputs: Expected) -> int:
    """Return the bytes of outputs that any kernel has to write: none of those that may be an input, or in one piece."""
    if {"A11", "B7", "C9"} & reference.own_codes:
        return 0
    return sum(tensor.numel() * tensor.element_size() for tensor in outputs.working)


def compare(expected: Expected, answer: Answer) -> Comparison:
    """Compare an answer with the reference, structure first."""
    if answer.outputs is None:
        return Comparison(answer.outcome, answer.detail, allclose=False)
    return correctness.compare(expected, answer.outputs)


def _has_narrow_range(session: Session, reference: Reference) -> bool:
    """Whether small inputs are lost, as in fp16 and not in TF32, whose errors are the same otherwise."""
    inputs = probe.with_each(reference.inputs(secrets.randbits(63)), probe.small)
    expected = reference.expected(inputs)
    if not measure.can_tell(expected, Precision.TF32, Precision.FP16):
        return False
    answer = session.call(inputs, expected, train=reference.train)
    return compare(expected, answer).precision is not Precision.TF32


def _summarize(results: list[Comparison], protocol: Protocol, precision: Precision) -> Correctness:
    planned = protocol.trials
    passed = sum(result.outcome is Outcome.CORRECT for result in results[:planned])
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
        precision_class=None if worst is None else _class_of(results, precision),
        downgraded=results[-1].outcome is Outcome.CORRECT and precision.is_below(protocol.precision),
        allclose=all(result.allclose for result in results) if len(results) else None,
        first_failure=results[-1].detail,
        pattern=results[-1].pattern,
    )


def _class_of(results: list[Comparison], precision: Precision) -> str:
    if precision is not Precision.REFERENCE:
        return precision.value
    return correctness.coarsest(result.label for result in results)


def state_findings(names: Iterable[str]) -> list[Finding]:
    """Turn what the candidate changed in its process, by the names of `workers.harness.state.CODES`, into findings."""
    return [
        Finding(
            state.CODES[name],
            Weight.SOFT if name in state.SOFT else Weight.HARD,
            f"the candidate changed the process it runs in: {name}",
        )
        for name in names
        if name in state.CODES
    ]


def findings_of(answer: Answer, reference: Reference) -> list[Finding]:
    """Turn what the harness saw around one call into findings."""
    codes = [code for code in answer.codes if code not in reference.own_codes]
    found = [Finding(code, *integrity.OUTPUT_RULES[code]) for code in codes]
    found += state_findings(answer.state)
    if not answer.settled:
        detail = "an output was still being written after the last event of its call"
        found.append(Finding("D19", Weight.HARD, detail))
    if answer.changed and not reference.changes_inputs:
        found.append(Finding("C4", Weight.SOFT, "the inputs were written to; the reference leaves them alone"))
    mutated = [name for name, is_parameter in answer.mutated if is_parameter or name in reference.state_names]
    if mutated and not reference.changes_state:
        detail = f"the weight {mutated[0]} was written to; the reference leaves its own alone"
        found.append(Finding("C4", Weight.SOFT, detail))
    return found
