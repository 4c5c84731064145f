"""Weights: what a candidate makes of other weights than those it was built with, and of whole numbers."""

import copy
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from drkernel_q.evaluation import Outcome
from drkernel_q.observation import Probe, Weight
from workers.comparison.measure import Expected, is_as_exact
from workers.comparison.reference import Reference
from workers.exchange import integrity
from workers.exchange.integrity import Finding
from workers.judging import trial, whole
from workers.judging.answer import Answer
from workers.judging.hackcheck import HackCheck
from workers.judging.session import Session
from workers.judging.trial import TrialResult

#: What a session says of a candidate whose weights have other names or shapes than the reference's.
FOREIGN = "foreign"
#: By how much parameters that are always the same are moved at most: a share of each, and an offset.
_MOVED = 0.1
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    old, before = copy.deepcopy(reference.model.state_dict()), reference.expected(inputs)
    reference.build(secrets.randbits(63))
    constant = _constants(reference, old)
    if constant:
        _move(reference, constant, alike=False)
    expected = reference.expected(inputs)
    if constant and not is_as_exact(expected, before):
        reference.build(reference.seed)
        expected = reference.expected(inputs)
    if session.adopt(reference) == FOREIGN:
        check.probes[Probe.WEIGHTS] = "the candidate's weights have other names"
        reference.adopt(old)
        if constant:
            _check_foreign(session, reference, check, constant, inputs, before)
        return
    answer = session.call(inputs, expected, train=reference.train)
    check.findings += trial.findings_of(answer, reference)
    check.probes[Probe.WEIGHTS] = ""
    if not _is_right(expected, answer):
        detail = "are not heeded" if _is_right(before, answer) else "lead to wrong outputs"
        check.findings.append(Finding("B9", Weight.SOFT, f"weights that are loaded after construction {detail}"))


def _check_foreign(
    session: Session,
    reference: Reference,
    check: HackCheck,
    constant: Sequence[str],
    inputs: Sequence[Any],
    before: Expected,
) -> None:
    """Probe whether weights that are the same under every seed are heeded (B9) where they have names of their own.

    They are found by their values. What has no counterpart, because it is packed with others or left out, must make no
    difference. `before` is what was expected of the weights as they were made.
    """
    old = copy.deepcopy(reference.model.state_dict())
    _move(reference, constant, alike=True)
    expected, new = reference.expected(inputs), copy.deepcopy(reference.model.state_dict())
    if not is_as_exact(expected, before):
        return
    there = session.replace([(old[name], new[name]) for name in constant])
    answer = session.call(inputs, expected, train=reference.train)
    check.findings += trial.findings_of(answer, reference)
    if _is_right(expected, answer):
        check.probes[Probe.WEIGHTS] = ""
        return
    reference.adopt(old | {name: new[name] for name, is_there in zip(constant, there, strict=True) if is_there})
    if _is_right(reference.expected(inputs), answer) or _is_right(before, answer):
        detail = "weights that are the same under every seed are not heeded"
    elif all(there):
        detail = "weights that are changed after construction lead to wrong outputs"
    else:
        return
    check.probes[Probe.WEIGHTS] = ""
    check.findings.append(Finding("B9", Weight.SOFT, detail))


def _is_right(expected: Expected, answer: Answer) -> bool:
    return trial.compare(expected, answer).outcome is Outcome.CORRECT


def _constants(reference: Reference, old: Mapping[str, Tensor]) -> list[str]:
    """Name the parameters that are the same under another seed, as ones and zeros are.

    Buffers are left out: what a model can do with them is known when it is made.
    """
    state = reference.model.state_dict()
    names = [name for name, parameter in reference.model.named_parameters() if parameter.dtype in _DTYPES]
    return [name for name in names if name in old and integrity.same_bits(state[name], old[name])]


def _move(reference: Reference, names: Sequence[str], *, alike: bool) -> None:
    """Move parameters a little, `alike` if they have the same content; none becomes negative that was not."""
    state = copy.deepcopy(reference.model.state_dict())
    moved: dict[tuple[object, ...], Tensor] = {}
    for name in names:
        value = state[name]
        key = (value.numel(), integrity.checksum(value)) if alike else (name,)
        if key not in moved:
            moved[key] = value * (1 + _MOVED * torch.rand_like(value)) + _MOVED * torch.rand_like(value)
        value.copy_(moved[key].reshape(value.shape))
    reference.adopt(state)


def _has_weights(reference: Reference) -> bool:
    return any(tensor.is_floating_point() for tensor in reference.model.state_dict().values())
