"""From the device that a person names to the queue that a worker takes from."""

import re
import socket
from collections.abc import Sequence

from drkernel_q.errors import NoDevice
from drkernel_q.queue.app import direct_queue, eval_queue
from drkernel_q.queue.registry import WorkerCard, WorkerState

AUTO = "auto"
#: A kind of device, of which a cluster may have several: a generation, or a model.
_CAPABILITY = re.compile(r"sm_\d+[a-z]?|nvidia-[a-z0-9-]+")
_DEVICE = re.compile(rf"auto|cpu(:\d+)?|cuda(:\d+)?|{_CAPABILITY.pattern}")


def capabilities(generation: str, model: str) -> tuple[str, ...]:
    """Name what a GPU may be asked for by: `sm_90`, and its model as in `nvidia-h200`."""
    words = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return generation, words if words.startswith("nvidia-") else f"nvidia-{words}"


def check_device(device: str) -> None:
    """Refuse what names no device.

    Raises:
        NoDevice: it is none of `auto`, `cpu`, `cpu:N`, `cuda`, `cuda:N`, `sm_90`, `nvidia-h200` and the like.
    """
    if _DEVICE.fullmatch(device) is None:
        raise NoDevice(f"`{device}` names no device; say auto, cpu, cuda, cuda:N, sm_90 or nvidia-h200.")


def route(cards: Sequence[WorkerCard], device: str) -> str | None:
    """Choose the queue for a device among the live workers; None when none of them serves it.

    `auto` is any CUDA device, and the cpu only where no worker has one. `cuda:N` prefers this host's.
    """
    able = [card for card in cards if card.accepts]
    kinds = {card.kind for card in able}
    if device == AUTO:
        return next((eval_queue(kind) for kind in ("cuda", "cpu") if kind in kinds), None)
    if device in {"cpu", "cuda"}:
        return eval_queue(device) if device in kinds else None
    if _CAPABILITY.fullmatch(device):
        return eval_queue(device) if any(device in card.capabilities for card in able) else None
    here = socket.gethostname()
    matching = sorted((card.host != here, card.host) for card in able if card.device == device)
    return direct_queue(matching[0][1], device) if matching else None


def why_not(cards: Sequence[WorkerCard], device: str) -> str:
    """Say why no live worker serves a device."""
    kind, _, number = device.partition(":")
    for card in cards:
        meant = card.device == device if number else kind in {AUTO, card.kind, *card.capabilities}
        if meant and card.state is WorkerState.QUARANTINED:
            return f"{card.device} of {card.host} is quarantined since {card.started_at}: {card.reason}"
    return f"No worker serves the device `{device}`; start one with `drkq worker`."


def serves(cards: Sequence[WorkerCard], queue: str) -> bool:
    """Whether a live worker takes from the queue, and will again when it has done what it is at."""
    return any(queue in card.queues and card.accepts for card in cards)
