"""Feedback: what the author of a kernel is told after a turn. Pure and deterministic, from the facts of an evaluation.

It says what is wrong and where, or where the time goes. It never says by which sign a result was found dishonest: who
learns of a detector learns to evade it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from drkernel_q.correctness import Correctness, ErrorPattern, Precision
from drkernel_q.evaluation import BaselineTiming, Evaluation, Integrity, Outcome, Timing
from drkernel_q.profile import KernelProfile, Origin, Profile

#: All that is said of a result that was come by otherwise than asked.
REJECTED = "rejected: integrity"
#: Most characters by default, rows of the profile, characters of a kernel's name and of a line of an error.
LIMIT, ROWS, NAME_CHARS, LINE_CHARS = 2000, 8, 60, 200
#: Frames of a traceback and lines of a message that are shown.
_FRAMES, _MESSAGE_LINES = 2, 24
_HEADLINES = {
    Outcome.WRONG_VALUE: "wrong values",
    Outcome.WRONG_SHAPE: "wrong shape",
    Outcome.WRONG_DTYPE: "wrong dtype",
    Outcome.COMPILE_ERROR: "compile error",
    Outcome.RUNTIME_ERROR: "runtime error",
    Outcome.OUT_OF_MEMORY: "out of memory",
    Outcome.TIMEOUT: "timeout",
    Outcome.CRASHED: "crashed",
}
_CLASSES = {"tf32": "TF32", "fp16": "float16", "bf16": "bfloat16", "reference": "full precision"}
_OWNERS = {
    Origin.CANDIDATE: "yours",
    Origin.TORCH: "torch",
    Origin.LIBRARY: "library",
    Origin.COMPILER: "torch.compile",
    Origin.MEMORY: "copy or fill",
    Origin.OTHER: "other",
}
_DOT = 'tl.dot multiplies float32 in TF32 unless it is called with input_precision="ieee".'
#: Share of a call in which an idle device is worth a word.
_IDLE = 0.3
_FRAME = re.compile(r'^  File "(?P<path>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_PRIVATE = re.compile(r"(?:/[^\s\"'/:]+)+/(candidate\.py)")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")


def feedback(evaluation: Evaluation, limit: int = LIMIT) -> str:
    """Return at most `limit` characters about an evaluation; what matters most comes first."""
    if evaluation.integrity in (Integrity.REJECTED, Integrity.SUSPICIOUS):
        return _fitted([REJECTED], limit)
    if evaluation.outcome is Outcome.CORRECT:
        return _fitted(_praise(evaluation), limit)
    return _fitted(_blame(evaluation), limit)


def _fitted(parts: Iterator[str] | list[str], limit: int) -> str:
    """Join parts by lines; the one that does not fit is cut, and those behind it are left out."""
    text = ""
    for part in parts:
        text += ("\n" if text else "") + part
        if len(text) > limit:
            return text[: max(limit - 1, 0)] + "…" if limit > 0 else ""
    return text


def _blame(evaluation: Evaluation) -> Iterator[str]:
    shown = evaluation.correctness
    headline = _HEADLINES[evaluation.outcome]
    if shown is None:
        yield headline
        yield from explain_error(evaluation.error or "no reason was given")
        return
    yield f"{headline}: {shown.passed} of {shown.trials} trials on random inputs passed"
    if shown.pattern is not None:
        yield _where(shown.pattern)
    if shown.first_failure:
        yield f"First failure: {_clean(shown.first_failure)}"
    if evaluation.outcome is Outcome.WRONG_VALUE and shown.precision_class in _CLASSES:
        looks = f"The errors are as large as those of {_CLASSES[shown.precision_class]} arithmetic."
        yield f"{looks} {_hint(shown)}".rstrip()


def _where(pattern: ErrorPattern) -> str:
    shape = "x".join(map(str, pattern.shape)) or "a single number"
    looks = f"; they are {pattern.looks}" if pattern.looks else ""
    which = f"output {pattern.output} ({shape})"
    return f"Wrong: {pattern.wrong} of {pattern.elements} elements of {which}: {pattern.region}{looks}."


def _hint(shown: Correctness) -> str:
    return _DOT if shown.precision_class == Precision.TF32 else ""


def _praise(evaluation: Evaluation) -> Iterator[str]:
    shown = evaluation.correctness
    yield "correct" if shown is None else f"correct: {shown.passed} of {shown.trials} trials on random inputs passed"
    examined = evaluation.integrity is not Integrity.UNKNOWN
    if not examined:
        yield "This run was not examined in full, so it does not count."
    if shown is not None and shown.downgraded:
        yield _downgrade(evaluation, shown)
    if evaluation.timing is not None:
        yield from (_speed(row, evaluation.timing) for row in evaluation.timing.baselines)
    if evaluation.profile is not None and evaluation.profile.kernels:
        yield from _profile(evaluation.profile)


def _downgrade(evaluation: Evaluation, shown: Correctness) -> str:
    asked = evaluation.protocol.precision if evaluation.protocol else Precision.REFERENCE
    made = _CLASSES.get(shown.precision_class or "", "a lower precision")
    text = f"Precision: products are made in {made}, and {_CLASSES[asked]} is asked for, so the speed may not count."
    return f"{text} {_hint(shown)}".rstrip()


def _speed(row: BaselineTiming, timing: Timing) -> str:
    full = row.precision is Precision.REFERENCE
    name = row.baseline.value if full else f"{row.baseline.value} in {_CLASSES[row.precision]}"
    interval = f"95% interval {row.speedup_low:.3g} to {row.speedup_high:.3g}"
    times = f"{timing.candidate_ms:.3g} ms against {row.reference_ms:.3g} ms"
    return f"Speed: {row.speedup:.3g}x over {name} ({interval}): {times}"


def _profile(profile: Profile) -> Iterator[str]:
    if profile.profile_ratio is not None:
        yield f"Profile: {profile.profile_ratio:.1%} of the device time is in kernels of your own"
    rows = sorted(profile.kernels, key=lambda row: (-row.device_us, row.name))
    total_us = sum(row.device_us for row in rows)
    yield from (_row(row, total_us) for row in rows[:ROWS])
    if len(rows) > ROWS:
        rest_us = sum(row.device_us for row in rows[ROWS:])
        yield f"  {_share(rest_us, total_us)}  {len(rows) - ROWS} more kernels"
    yield f"Most of the time is in {_named(rows[0])}."
    if profile.window_us and profile.busy_us is not None and profile.busy_us < (1 - _IDLE) * profile.window_us:
        yield f"The device is idle for {1 - profile.busy_us / profile.window_us:.0%} of a call, between kernels."


def _row(row: KernelProfile, total_us: float) -> str:
    times = f"{row.launches:.3g} {'launch' if row.launches == 1 else 'launches'}, {row.device_us:.4g} us"
    return f"  {_share(row.device_us, total_us)}  {_name(row)} ({_OWNERS[row.origin]}): {times}"


def _share(device_us: float, total_us: float) -> str:
    return f"{device_us / total_us if total_us > 0 else 0.0:6.1%}"


def _named(row: KernelProfile) -> str:
    return f"your {_name(row)}" if row.origin is Origin.CANDIDATE else f"{_name(row)} ({_OWNERS[row.origin]})"


def _name(row: KernelProfile) -> str:
    name = _clean(row.name.replace("\n", " "))
    return name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…"


class Frame(NamedTuple):
    """One place of a traceback, with the lines of source that came with it."""

    path: str
    line: int
    function: str | None
    source: tuple[str, ...]

    @property
    def is_own(self) -> bool:
        """Whether it is in the kernel's own file, and not in the harness's module of the same name."""
        return self.path.endswith("/candidate.py") and not self.path.endswith("/workers/harness/candidate.py")


def explain_error(error: str) -> Iterator[str]:
    """Say what was raised, and on which lines of the kernel's own file."""
    frames, message = take_apart(error)
    for frame in [frame for frame in frames if frame.is_own][-_FRAMES:]:
        where = f", in {frame.function}" if frame.function and frame.function != "<module>" else ""
        yield f"candidate.py, line {frame.line}{where}:"
        yield from map(_cut, frame.source)
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    left_out = len(lines) - _MESSAGE_LINES
    if left_out > 0:
        lines = [lines[0], f"[{left_out} lines]", *lines[1 - _MESSAGE_LINES :]]
    yield from map(_cut, lines)


def take_apart(error: str) -> tuple[list[Frame], str]:
    """Split the text of a traceback into its frames and the message of what was raised last; any text will do."""
    frames: list[Frame] = []
    message: list[str] = []
    for line in error.splitlines():
        matched = _FRAME.match(line)
        if matched:
            frames.append(Frame(matched["path"], int(matched["line"]), matched["function"], ()))
            message.clear()
        elif frames and not message and line.startswith("    "):
            frames[-1] = frames[-1]._replace(source=(*frames[-1].source, line))
        elif line.strip() and not line.startswith("Traceback (most recent call last)"):
            message.append(line)
    return frames, "\n".join(message)


def _cut(line: str) -> str:
    line = _clean(line)
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"


def _clean(text: str) -> str:
    """Leave out what differs from run to run: private folders and addresses."""
    return _ADDRESS.sub("0x…", _PRIVATE.sub(r"\1", text))
