"""How one reply is shown: a line for people, a document for programs, an exit code for shells."""

from collections.abc import Mapping
from typing import Any

from drkernel_q.audit import Audit
from drkernel_q.correctness import Precision
from drkernel_q.errors import DrkqError
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Integrity, Outcome, Reply, side_name
from drkernel_q.feedback import feedback
from drkernel_q.queue.handle import unwrap
from drkernel_q.reward import reward

#: Longest piece of an error in a line, characters.
_ERROR_CHARS = 200


def exit_code(reply: Reply) -> int:
    """Return 0 for a correct and clean kernel, 1 for one at fault, and the code of the error if nothing was decided."""
    try:
        return 0 if unwrap(reply).honest_and_correct else 1
    except DrkqError as error:
        return error.exit_code


def document(request: EvaluationRequest, reply: Reply, audits: Mapping[str, Audit]) -> dict[str, Any]:
    """Return the JSON document of one reply; its fields are described in docs/reference/evaluation.md.

    `audits` of the problem, by kind of device, say whether its speed is rewarded.
    """
    head: dict[str, Any] = {
        "request_id": request.id,
        "kernel": {"name": request.kernel.name, "hash": request.kernel.hash},
        "problem": {"name": request.problem.name, "hash": request.problem.hash},
    }
    if reply.evaluation is None:
        assert reply.failure is not None
        return head | {"failure": reply.failure.model_dump(mode="json")}
    audit = audits.get(reply.evaluation.environment.device_kind)
    head |= {"cached": reply.cached, "worker": reply.worker, "finished_at": reply.finished_at}
    return head | reply.evaluation.model_dump(mode="json") | {"reward": reward(reply.evaluation, audit=audit)}


def told(request: EvaluationRequest, reply: Reply) -> str:
    """Return what the kernel's author is told."""
    return line(request, reply) if reply.evaluation is None else feedback(reply.evaluation)


def line(request: EvaluationRequest, reply: Reply) -> str:
    """Return one line for people."""
    name = request.kernel.name
    if reply.evaluation is None:
        assert reply.failure is not None
        return f"{name}   no verdict ({reply.failure.kind})   {reply.failure.message}"
    return "   ".join([name, *summary(reply.evaluation), *_age(reply)])


def summary(evaluation: Evaluation) -> list[str]:
    """Return the parts of a line about an evaluation: what it showed, how fast, whose work, and why not."""
    if evaluation.outcome is not Outcome.CORRECT:
        return [evaluation.outcome.value, _last_line(evaluation.error)]
    parts = ["correct" if evaluation.integrity is Integrity.CLEAN else f"correct, {evaluation.integrity.value}"]
    parts += _measurements(evaluation)
    return parts + [f"{item.code}: {item.detail}" for item in evaluation.evidence]


def _age(reply: Reply) -> list[str]:
    """Say of what was not evaluated for this request when it was."""
    return [f"evaluated {reply.finished_at[:16].replace('T', ' ')} UTC"] if reply.cached else []


def _measurements(evaluation: Evaluation) -> list[str]:
    parts = []
    if evaluation.timing is not None:
        timing = evaluation.timing
        for row in timing.baselines:
            first = timing.baselines[0]
            name = side_name(row.baseline, row.precision)
            over = "" if row is first and row.precision is Precision.REFERENCE else f" over {name}"
            interval = f"[{ratio(row.speedup_low)}, {ratio(row.speedup_high)}]"
            parts.append(
                f"{ratio(row.speedup)}x{over} {interval} ({_ms(timing.candidate_ms)}, was {_ms(row.reference_ms)})"
            )
    if evaluation.profile_ratio is not None:
        parts.append(f"{evaluation.profile_ratio:.0%} of the device time is its own")
    runs = f", {evaluation.timing.runs} runs" if evaluation.timing else ""
    return [*parts, f"on {_device(evaluation)}{runs}"]


def _device(evaluation: Evaluation) -> str:
    name = evaluation.environment.device_name
    return evaluation.device if name.startswith("cpu") else f"{evaluation.device} ({name})"


def ratio(value: float) -> str:
    """Return a speedup to two digits after the point, or two that count."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"  # noqa: PLR2004 - two digits either way


def _ms(value: float) -> str:
    return f"{value:.3g} ms"


def _last_line(error: str | None) -> str:
    lines = [text.strip() for text in (error or "").splitlines() if text.strip()]
    text = lines[-1] if lines else "no reason was given"
    return text if len(text) <= _ERROR_CHARS else text[: _ERROR_CHARS - 1] + "…"
