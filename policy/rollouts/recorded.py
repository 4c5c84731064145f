"""Recorded facts as the only judge: what was measured on a device elsewhere, and nothing else.

A kernel that was never measured has no facts: None, as where the infrastructure failed. It earns no reward, is no row
of the loss and in nobody's baseline (docs/decisions/0012). No broker, no worker and no device is needed, so many runs
fit on one machine.
"""

import logging
from collections import Counter

from drkernel_q.errors import BadSettings
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Protocol
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.queue.archive import Archive, Memory

log = logging.getLogger(__name__)

#: As the device that judges, it names what is in the store.
RECORDED = "recorded"


class RecordedJudge:
    """A judge that looks up what is known of a kernel on one kind of device."""

    def __init__(self, archive: Archive, device_kind: str | None, protocol: Protocol) -> None:
        """Name the store and the kind of device, such as `sm_90/NVIDIA H200`.

        Raises:
            BadSettings: no kind of device is named, or the store knows nothing of it.
        """
        if device_kind is None:
            raise BadSettings("Name the kind of device whose recorded facts judge by DRKQ_RECORDED.")
        if not archive.conditions(device_kind):
            raise BadSettings(f"The store has no facts of {device_kind}; `drkq db import` reads a file of them.")
        self._memory = Memory(archive, device_kind)
        self._protocol = protocol
        self._found: dict[tuple[str, str], Evaluation | None] = {}
        self.counts: Counter[str] = Counter()
        """How many were asked for and `known`, or `unknown`."""

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        """Find the facts about a kernel; None when it was never measured."""
        key = (problem.hash, kernel.hash)
        if key not in self._found:
            self._found[key] = await self._look(problem, kernel)
        found = self._found[key]
        self.counts["unknown" if found is None else "known"] += 1
        return found

    async def _look(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        request = EvaluationRequest(
            id="recorded", problem=problem, kernel=kernel, protocol=self._protocol, submitted_at=""
        )
        reply = await self._memory.recorded(request)
        return None if reply is None else reply.evaluation
