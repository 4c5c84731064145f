"""Judge: who turns kernels into facts during a rollout; behind it, the job queue and its workers."""

import copy
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Protocol

from drkernel_q import evaluation as facts
from drkernel_q.errors import Cancelled, InfrastructureFailure, TimedOut
from drkernel_q.evaluation import Evaluation, EvaluationRequest
from drkernel_q.kernel import Kernel
from drkernel_q.local import join
from drkernel_q.problem import Problem
from drkernel_q.queue.archive import Archive
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.request import Priority
from drkernel_q.settings import Settings

log = logging.getLogger(__name__)


class Judge(Protocol):
    """What a rollout asks of whoever judges; safe for many concurrent calls."""

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        """Find the facts about a kernel; None when that failed for a reason that is not the kernel's.

        Raises:
            BadProblem: the reference cannot be used, so no kernel of it can be judged.
            Unavailable: nobody judges, and nobody will.
        """
        ...


class QueueJudge:
    """A judge that asks the job queue, under the name of one run.

    A request is named by run, problem and kernel: a run that was killed and goes on asks the same again, and finds what
    was found for it meanwhile. The turn is linked in the store by whoever stores the turn (`Store.add_turn`).
    """

    def __init__(
        self,
        queue: EvaluationQueue,
        *,
        run: str,
        device: str = "auto",
        protocol: facts.Protocol = facts.Protocol(),  # noqa: B008 - frozen
        priority: Priority = Priority.TRAINING,
        deadline_s: float = 240.0,
    ) -> None:
        """Ask through an open queue."""
        self._queue = queue
        self._run = run
        self._device = device
        self._protocol = protocol
        self._priority = priority
        self._deadline_s = deadline_s
        self._fresh = False
        self._failures: Counter[str] = Counter()

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        """Find the facts about a kernel; the queue has tried again, elsewhere too, before this gives None."""
        asked = (self._run, problem.hash, kernel.hash, self._device, self._protocol.model_dump_json())
        name = _digest(*asked, *(["fresh"] if self._fresh else []))
        for tries in range(2):
            try:
                return await self._ask(problem, kernel, name)
            except (Cancelled, InfrastructureFailure, TimedOut) as error:
                # Asked by the same name, the queue would answer by this failure again.
                self._failures[name] += 1
                if isinstance(error, Cancelled) and tries == 0:
                    continue  # by whoever asked before and was stopped
                log.warning("A kernel for %s was not judged: %s", problem.name, error, extra={"action": "not_judged"})
                return None
        return None

    def afresh(self) -> "QueueJudge":
        """Return a judge like this one that has everything measured anew, whatever is known already."""
        judge = copy.copy(self)
        judge._fresh = True
        judge._failures = Counter()
        return judge

    async def _ask(self, problem: Problem, kernel: Kernel, name: str) -> Evaluation:
        request = EvaluationRequest(
            id=_digest(name, str(self._failures[name])),
            problem=problem,
            kernel=kernel,
            protocol=self._protocol,
            deadline_s=self._deadline_s,
            priority=self._priority,
            run=self._run,
            fresh=self._fresh,
            submitted_at=datetime.now(UTC).isoformat(),
        )
        return await self._queue.evaluate(request, device=self._device)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@asynccontextmanager
async def open_judge(
    settings: Settings,
    *,
    run: str,
    archive: Archive | None = None,
    device: str | None = None,
    protocol: facts.Protocol = facts.Protocol(),  # noqa: B008 - frozen
    priority: Priority = Priority.TRAINING,
    tell: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[QueueJudge]:
    """Join the cluster of the settings, or start the embedded stack, and judge through its queue.

    The archive, the store, knows what was evaluated before; `tell` is told what is being started.

    Raises:
        NoBroker, NoStore, NoDevice, DeviceBusy, NoWorker: a part cannot be had.
    """
    device = device or settings.device
    with join(settings, [device], tell) as url:
        async with EvaluationQueue(url, archive=archive, recorded=settings.recorded) as queue:
            yield QueueJudge(queue, run=run, device=device, protocol=protocol, priority=priority)
            await queue.written()  # or whoever reads the store next might not find the last of it
