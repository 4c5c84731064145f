"""Requests for the echo worker."""

import json
import uuid
from typing import Any

from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem


def echo_request(echo: str = "", *, deadline_s: float = 240.0, **order: Any) -> EvaluationRequest:
    """Ask the echo worker for an evaluation whose stdout is `echo`, or for what `order` says."""
    return EvaluationRequest(
        id=uuid.uuid4().hex,
        problem=Problem(name="echo", source="pass"),
        kernel=Kernel(source=json.dumps({"echo": echo, **order})),
        deadline_s=deadline_s,
        submitted_at="2026-01-01T00:00:00+00:00",
    )
