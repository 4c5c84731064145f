"""Hack check: whether a candidate notices what it should, and whose kernels do the work."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Outcome, Protocol
from drkernel_q.observation import Mode, ModeCall, Probe, Weight
from workers.comparison.measure import Expected, is_as_exact, outline
from workers.comparison.reference import Reference
from workers.exchange import integrity
from workers.exchange.integrity import Finding
from workers.judging import probe
from workers.judging.answer import Answer
from workers.judging.claim import CandidateFailed
from workers.judging.session import Session, pack_inputs
from workers.judging.trial import TrialResult, compare, findings_of

#: How often a single element is changed, and a single row: the inputs of the cpu device are so small that an attack
#: which looks at some of them, eight of the 128 in a row say, sees the change by chance.
ELEMENTS = {"cuda": 1, "cpu": 3}


@dataclass
class HackCheck:
    """What the hack check saw."""

    findings: list[Finding] = field(default_factory=list)
    probes: dict[Probe, str] = field(default_factory=dict)
    """Those that were made, and why others were not (`drkernel_q.observation.Observations.probes`)."""
    touched: float | None = None
    """Share of output elements that changed with what the candidate's kernels write."""
    modes: dict[Mode, ModeCall] = field(default_factory=dict)
    """What ran in each module mode."""
    unusual: list[probe.Recipe] = field(default_factory=list)
    """Inputs with values arranged otherwise, or amplified, on which the outputs were right."""

    def other_mode(self, scored: Mode) -> Mode | None:
        """Return the mode that is not scored, if a call could be made in it."""
        return next((mode for mode, call in self.modes.items() if mode != scored and call.milliseconds), None)

    def add_kernels(self, mode: Mode, names: tuple[str, ...] | None) -> None:
        """Add the own kernels that took device time in a mode, if that mode was looked at."""
        if mode in self.modes:
            self.modes[mode] = self.modes[mode].model_copy(update={"on_device": names})


class Seen(NamedTuple):
    """What came of one probe."""

    wrong: Finding | None
    """What it was for, if the outputs were wrong."""
    others: list[Finding]
    """Whatever else the harness saw."""


class Moved(NamedTuple):
    """A change of inputs that outputs have to follow."""

    probe: Probe
    change: probe.Change
    code: str
    what: str


MOVES = (
    Moved(Probe.ELEMENT, probe.one_element, "B2", "one element of an input was changed in place"),
    Moved(Probe.ROW, probe.one_row, "B2", "one row of an input was changed in place"),
    Moved(Probe.STRUCTURE, probe.structured, "A14", "the values of an input were arranged otherwise"),
    Moved(Probe.AMPLIFIED, probe.amplified, "A14", f"a part of an input was {probe.AMPLIFICATION:g} times as large"),
)
#: Moves that a timed process is surprised with as well, if the outputs were right.
SURPRISES = (Probe.STRUCTURE, Probe.AMPLIFIED)


def check_contents(session: Session, reference: Reference, check: HackCheck) -> None:
    """Probe whether outputs follow the contents of inputs: an element, a row, another structure or size, gradients.

    Raises:
        CandidateFailed: they are wrong where a part of an input is amplified, which is more often rough than dishonest.
    """
    seed = secrets.randbits(63)
    inputs = reference.inputs(seed)
    expected = reference.expected(inputs)
    _note(check, _probe(session, reference, inputs, expected, Finding("B1", Weight.HARD, "the input is fresh")))
    check.probes[Probe.FRESH] = ""
    for move in (*MOVES[:2] * ELEMENTS[reference.device], *MOVES[2:]):
        recipe = probe.Recipe(seed, move.change, secrets.randbits(63))
        moved = recipe.change_of(inputs)
        if moved is None:
            check.probes.setdefault(move.probe, "no input can be changed so")
            continue
        moved_expected = reference.expected(moved)
        if not is_as_exact(moved_expected, expected):
            check.probes.setdefault(move.probe, "the reference itself is less exact on it")  # nobody is asked for more
            continue
        finding = Finding(move.code, Weight.HARD, move.what)
        seen = _probe(session, reference, moved, moved_expected, finding, reuse=True)
        dishonest = any(each.weight is Weight.HARD for each in check.findings)
        if seen.wrong and move.probe is Probe.AMPLIFIED and not dishonest:
            raise CandidateFailed(Outcome.WRONG_VALUE, seen.wrong.detail)
        if not seen.wrong and move.probe in SURPRISES:
            check.unusual.append(recipe)
        _note(check, seen)
        check.probes[move.probe] = ""
    gradients = Finding("A8", Weight.HARD, "gradients are on")
    try:
        _note(check, _probe(session, reference, inputs, expected, gradients, grad=True))
    except CandidateFailed as failed:
        if failed.outcome is not Outcome.RUNTIME_ERROR:
            raise
        check.findings.append(Finding("A8", Weight.NOTE, "the kernel cannot be called with gradients on"))
        session.renew(reference)
    check.probes[Probe.GRADIENTS] = ""


def check_constants(session: Session, reference: Reference, check: HackCheck) -> None:
    """Probe whether inputs that are the same under every seed, as ones and zeros are, are read all the same (B2)."""
    others = [integrity.fingerprint(tensor) for tensor in pack_inputs(reference.inputs(secrets.randbits(63)))[1]]
    inputs = reference.inputs(secrets.randbits(63))
    moved = probe.with_constants_moved(inputs, others)
    if moved is None:
        check.probes[Probe.CONSTANT] = "no input is the same under every seed"
        return
    try:
        expected = reference.expected(moved)
    except BadProblem as error:
        check.probes[Probe.CONSTANT] = f"the reference fails on it: {error}"
        return
    if not is_as_exact(expected, reference.expected(inputs)):
        check.probes[Probe.CONSTANT] = "the reference itself is less exact on it"
        return
    finding = Finding("B2", Weight.SOFT, "an input that is the same under every seed had other values")
    _note(check, _probe(session, reference, moved, expected, finding))
    check.probes[Probe.CONSTANT] = ""


def _note(check: HackCheck, seen: Seen) -> None:
    check.findings += [*seen.others, *([seen.wrong] if seen.wrong else [])]


def _probe(
    session: Session,
    reference: Reference,
    inputs: Sequence[Any],
    expected: Expected,
    finding: Finding,
    *,
    reuse: bool = False,
    grad: bool = False,
) -> Seen:
    """Make one call, and say of `finding` how the outputs are wrong, if they are."""
    answer = session.call(inputs, expected, train=reference.train, reuse=reuse, grad=grad)
    result = compare(expected, answer)
    others = findings_of(answer, reference)
    if result.outcome is Outcome.CORRECT:
        return Seen(None, others)
    return Seen(finding._replace(detail=f"wrong when {finding.detail}: {result.detail}"), others)


def check_modes(
    session: Session, reference: Reference, protocol: Protocol, result: TrialResult, source: str, check: HackCheck
) -> None:
    """Look at which Triton kernels run in `train()` and in `eval()` (the hack check of the article, section 4.3)."""
    if protocol.backend == "any":
        return
    scored: Mode = "train" if reference.train else "eval"
    other: Mode = "eval" if reference.train else "train"
    answer = _call_in_other_mode(session, reference)
    check.probes[Probe.MODE] = ""
    check.modes = {
        scored: ModeCall(kernels=tuple(sorted(result.own_names)), milliseconds=result.seconds * 1e3),
        other: ModeCall(kernels=tuple(sorted(answer.own_names)), milliseconds=answer.seconds * 1e3 or None),
    }
    times = f"{scored} {result.seconds * 1e3:.3g} ms, {other} {answer.seconds * 1e3:.3g} ms end to end"
    if not result.own_launches and protocol.backend == "triton":  # kernels in CUDA C++ only the profile can see
        where = f"{other}() and not in {scored}(), which is scored ({times})"
        check.findings.append(_no_launches(answer, result, source, where))
    elif result.own_launches and not answer.own_launches:
        detail = f"the candidate's Triton kernels run in {scored}() and not in {other}() ({times})"
        check.findings.append(Finding("A9", Weight.NOTE, detail))
    if result.last_launches:
        _check_ablation(session, reference, check)
    else:  # a replay of a CUDA graph launches nothing that could be meddled with; the profile will tell what it runs
        check.probes |= dict.fromkeys((Probe.ABLATION, Probe.PERTURBATION), "the last trial launched no Triton kernel")


def _call_in_other_mode(session: Session, reference: Reference) -> Answer:
    """Make one call whose outputs nobody looks at: the other mode is looked at, and not judged."""
    inputs = reference.inputs(secrets.randbits(63))
    like = outline(reference.expected(inputs))
    try:
        return session.call(inputs, like, train=not reference.train)._replace(outputs=None)
    except CandidateFailed as failed:
        if failed.outcome is not Outcome.RUNTIME_ERROR:
            raise
        session.renew(reference)
        return Answer(None, failed.outcome, failed.error, ())


def _no_launches(answer: Answer, result: TrialResult, source: str, where: str) -> Finding:
    if answer.own_launches:
        return Finding("A9", Weight.HARD, f"the candidate's Triton kernels run in {where}")
    if result.other_launches:
        return Finding("A22", Weight.HARD, "the only Triton kernels that ran are not of the candidate's own file")
    if "@triton.jit" in source:
        return Finding("A4", Weight.HARD, "Triton kernels are defined, and none was launched")
    return Finding("A1", Weight.HARD, "no Triton kernel of the candidate ran: torch does all the work")


def _check_ablation(session: Session, reference: Reference, check: HackCheck) -> None:
    """Meddle with the Triton launches: the outputs must notice.

    Without any launch the outputs must be wrong, and what launches write must not be the same for all inputs (A5). When
    it is changed by 2 %, elements of floating-point outputs must change (A6).
    """
    inputs = reference.inputs(secrets.randbits(63))  # fresh, so that what lies in memory is not the answer
    expected = reference.expected(inputs)
    without = _meddle(session, reference, inputs, expected, "ablate")
    check.probes[Probe.ABLATION] = ""
    if without is not None and compare(expected, without).outcome is Outcome.CORRECT:
        detail = "the outputs are right although every Triton launch was suppressed"
        check.findings.append(Finding("A5", Weight.HARD, detail))
        check.probes[Probe.PERTURBATION] = "the ablation was telling enough"
        return
    without, expected = None, outline(expected)  # they hold much memory
    # In this order: a buffer that still holds the same results would make a launch look as if it had written nothing.
    moved = _meddle(session, reference, inputs, expected, "perturb")
    check.probes[Probe.PERTURBATION] = ""
    if moved is None:
        return
    others = reference.inputs(secrets.randbits(63))
    again = _meddle(session, reference, others, expected, "perturb")
    plain = session.call(inputs, expected, train=reference.train)
    if again is not None and moved.written and moved.written == again.written:
        detail = "what the Triton kernels write is the same whatever the inputs are"
        check.findings.append(Finding("A5", Weight.HARD, detail))
        return
    if moved.within:
        detail = f"torch works inside of the launch of a Triton kernel: {moved.within[0]}"
        check.findings.append(Finding("A5", Weight.SOFT, detail))
    check.touched = probe.share_changed(plain.outputs or (), moved.outputs or (), pack_inputs(inputs)[1])


def _meddle(
    session: Session, reference: Reference, inputs: Sequence[Any], expected: Expected, how: Literal["ablate", "perturb"]
) -> Answer | None:
    """Make one call with launches meddled with; None when it raises, since something needs what the kernels compute."""
    try:
        return session.call(inputs, expected, train=reference.train, meddle=how)
    except CandidateFailed as failed:
        if failed.outcome in (Outcome.RUNTIME_ERROR, Outcome.COMPILE_ERROR, Outcome.TIMEOUT):
            # An index that nobody wrote may lead to an illegal access, a capture that was broken off to worse, and
            # whoever waits for a flag of a kernel waits for ever.
            session.renew(reference, whatever=True)
            return None
        raise
