"""Weights: what a candidate makes of other weights than those it was built with, and of whole numbers."""

import copy
import secrets

from drkernel_q.evaluation import Outcome
from drkernel_q.observation import Probe, Weight
from workers.comparison.reference import Reference
from workers.exchange.integrity import Finding
from workers.judging import trial, whole
from workers.judging.answer import Answer
from workers.judging.hackcheck import HackCheck
from workers.judging.session import Session
from workers.judging.trial import TrialResult

#: What a session says of a candidate whose weights have other names or shapes than the reference's.
FOREIGN = "foreign"


def try_whole_numbers(session: Session, reference: Reference, result: TrialResult) -> TrialResult:
    """Make one more trial, on whole numbers, if the problem can be asked for them; return the result with its outcome.

    Models that have weights are made anew afterwards.
    """
    before = copy.deepcopy(reference.model.state_dict())
    task = whole.make_task(reference)
    if task is None:
        return result
    weighted = _has_weights(reference)
    if weighted and session.adopt(reference) == FOREIGN:
        reference.adopt(before)
        return result
    answer = session.call(task.inputs, task.expected, train=reference.train)
    result.findings.extend(trial.findings_of(answer, reference))
    off = whole.deviation(task, answer.outputs) if answer.outputs is not None else None
    stale = False
    if off is not None and weighted:
        reference.adopt(before)
        stale = trial.compare(reference.expected(task.inputs), answer).outcome is Outcome.CORRECT
    if weighted:
        result.seeds["weights"].append(trial.build(session, reference))
    if stale:  # weights that were loaded so late are not heeded, which is another matter
        return result
    return _with_whole_numbers(result, answer, off)


def _with_whole_numbers(result: TrialResult, answer: Answer, off: whole.Deviation | None) -> TrialResult:
    outcome, detail, pattern = answer.outcome, answer.detail, None
    if off is not None:
        outcome, detail, pattern = Outcome.WRONG_VALUE, off.detail, off.pattern
    facts = {"whole_numbers": outcome is Outcome.CORRECT, "first_failure": detail, "pattern": pattern}
    return result._replace(outcome=outcome, detail=detail, correctness=result.correctness.model_copy(update=facts))


def check_weights(session: Session, reference: Reference, check: HackCheck) -> None:
    """Probe whether weights that are loaded after construction are heeded (B9); both sides have others afterwards."""
    if not _has_weights(reference):
        check.probes[Probe.WEIGHTS] = "the problem has no weights"
        return
    inputs = reference.inputs(secrets.randbits(63))
    before = reference.expected(inputs)
    reference.build(secrets.randbits(63))
    expected = reference.expected(inputs)
    if session.adopt(reference) == FOREIGN:
        check.probes[Probe.WEIGHTS] = "the candidate's weights have other names"
        return
    answer = session.call(inputs, expected, train=reference.train)
    check.findings += trial.findings_of(answer, reference)
    check.probes[Probe.WEIGHTS] = ""
    if trial.compare(expected, answer).outcome is not Outcome.CORRECT:
        late = trial.compare(before, answer).outcome is Outcome.CORRECT
        detail = "are not heeded" if late else "lead to wrong outputs"
        check.findings.append(Finding("B9", Weight.SOFT, f"weights that are loaded after construction {detail}"))


def _has_weights(reference: Reference) -> bool:
    return any(tensor.is_floating_point() for tensor in reference.model.state_dict().values())
