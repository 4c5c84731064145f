"""Serving: a fork of trusted code answers one request after the other, as long as all is well with it."""

from collections.abc import Callable
from typing import Any

import torch

from workers.harness import state
from workers.isolation.wire import Channel, WireClosed, WireTimeout

#: A process that nobody has asked anything for this long ends, seconds.
IDLE_S = 600.0
#: What may change without harm: waiting candidate processes each have a thread that reads what they print.
_HARMLESS = frozenset({"threads"})

#: Returns a reply, and whether the process is fit for another request.
Answer = Callable[[dict[str, Any]], tuple[dict[str, Any], bool]]


def _stay(_code: int) -> None:
    """A reference is trusted, and runs on this very thread."""


def serve(channel: Channel, device: str, answer: Answer) -> None:
    """Answer what comes over `channel` until nobody asks, or something of a reference has left its mark here."""
    guard = state.Guard(device, leave=_stay)
    again = True
    while again:
        try:
            job, _ = channel.receive(IDLE_S)
        except (WireClosed, WireTimeout):
            return
        if "request" not in job:  # somebody only wants to know whether there is an answer, and a device that works
            if device == "cuda":
                torch.ones(1, device="cuda").item()
            channel.send({})
            continue
        reply, fit = answer(job)
        again = fit and not set(guard.changes()) - _HARMLESS
        channel.send(reply | {"again": again})
        if device == "cuda" and again:
            torch.cuda.empty_cache()
