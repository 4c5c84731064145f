"""Requests for the echo worker."""

import json
import uuid
from typing import Any

from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem


def echo_request(
    echo: str = "", *, deadline_s: float = 240.0, fresh: bool = False, own: str | None = None, **order: Any
) -> EvaluationRequest:
    """Ask the echo worker for an evaluation whose stdout is `echo`, or for what `order` says.

    Two requests ask for different things, unless `own` and all else is the same.
    """
    order |= {"echo": echo, "own": own or uuid.uuid4().hex}
    return EvaluationRequest(
        id=uuid.uuid4().hex,
        problem=Problem(name="echo", source="pass"),
        kernel=Kernel(source=json.dumps(order)),
        fresh=fresh,
        deadline_s=deadline_s,
        submitted_at="2026-01-01T00:00:00+00:00",
    )
