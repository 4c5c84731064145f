"""Request: what every client sends to a worker, whatever it asks for."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from drkernel_q.problem import Problem
from drkernel_q.value import Value


class Priority(StrEnum):
    """What goes first where requests wait; none waits for ever (`drkernel_q.queue.turns`)."""

    INTERACTIVE = "interactive"
    """Somebody waits in front of a screen."""
    VALIDATION = "validation"
    TRAINING = "training"
    BACKFILL = "backfill"
    """Nobody waits for it, such as audits of whole suites."""


class Request(Value):
    """Something to be done about a problem on a device."""

    id: str
    """Identity of this request (32 hex digits); deliveries and retries share it."""
    problem: Problem
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 240.0
    """Longest time that it may take on the worker, seconds."""
    priority: Priority = Priority.INTERACTIVE
    """What it waits behind."""
    reply_to: str | None = None
    """Stream that the reply goes to."""
    submitted_at: str
    """UTC time of submission, ISO 8601."""
