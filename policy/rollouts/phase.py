"""Phase: one device shared in turns, so that nothing is timed while something else computes, and a clock for each.

Where sampler, workers and trainer are on one device, a step goes through phases: all completions that are under way
are written (`generate`), all kernels that are waiting are judged (`judge`), and so on to the last turn; then the
trainer has the device (`learn`). Many may be in a phase at once, and never two phases. Between processes the device's
lease says the same: the trainer's process holds it alone while it generates or learns, and each evaluation of a worker
shares it, so that also `drkq eval` of somebody else waits. Where devices are apart, phases overlap and only their time
is kept.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Literal, Self

from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.lock import Lease
from drkernel_q.problem import Problem
from drkernel_q.trajectory import Message
from policy.rollouts.judging import Judge
from policy.sampler.protocol import Prompt, Sample, Sampler, Sampling

Phase = Literal["generate", "judge", "learn"]
#: How often to ask for a lease that somebody else holds.
_POLL_S = 0.05


class Phases:
    """Who may use the device now; for one event loop."""

    def __init__(self, *, shared: bool, lease: Lease | None = None, watch: Callable[[str], None] | None = None) -> None:
        """Share one device between the phases, or not; with the lease of the device where workers may have it too.

        `watch` is told of each phase that begins, and how much was written and judged since `begin`.
        """
        self.done: Counter[str] = Counter()
        """How often each phase was left since `begin`."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Wall-clock seconds during which each phase was on."""
        self._title = ""
        self._watch = watch or (lambda _: None)
        self._shared = shared
        self._lease = lease
        self._inside: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._opening = False
        self._changed = asyncio.Event()

    def begin(self, title: str) -> None:
        """Begin to count anew."""
        self._title = title
        self.done.clear()
        self.seconds.clear()

    @asynccontextmanager
    async def phase(self, name: Phase) -> AsyncIterator[None]:
        """Be in a phase for the length of a block, once no other one is on."""
        while not self._may_enter(name):
            await self._changed.wait()
        if not self._inside[name]:
            await self._open(name)
        self._inside[name] += 1
        try:
            yield
        finally:
            self._inside[name] -= 1
            self.done[name] += 1
            self._say(name)
            if not self._inside[name]:
                self._close(name)

    def _may_enter(self, name: str) -> bool:
        if not self._shared:
            return True
        return not self._opening and all(other == name or not count for other, count in self._inside.items())

    async def _open(self, name: str) -> None:
        """Take the lease for a phase of this process's own; judging is for the workers, who take it themselves."""
        if self._shared and self._lease is not None and name != "judge":
            self._opening = True
            try:
                while not self._lease.take(alone=True):
                    await asyncio.sleep(_POLL_S)
            finally:
                self._opening = False
                self._tell()
        self._since[name] = time.monotonic()
        self._say(name)

    def _say(self, name: str) -> None:
        self._watch(f"{self._title}: {name}, {self.done['generate']} written, {self.done['judge']} judged")

    def _close(self, name: str) -> None:
        self.seconds[name] += time.monotonic() - self._since[name]
        if self._shared and self._lease is not None:
            self._lease.let_go()
        self._tell()

    def _tell(self) -> None:
        """Wake whoever waits to look again."""
        self._changed.set()
        self._changed = asyncio.Event()


class PhasedSampler:
    """A sampler that writes only while the device is there for it."""

    def __init__(self, sampler: Sampler, phases: Phases) -> None:
        """Wrap a sampler."""
        self._sampler = sampler
        self._phases = phases
        self.name = sampler.name
        self.context_tokens = sampler.context_tokens

    async def __aenter__(self) -> Self:
        """Load or connect."""
        await self._sampler.__aenter__()
        self.context_tokens = self._sampler.context_tokens
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of what the sampler holds."""
        await self._sampler.__aexit__(kind, error, traceback)

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """Render a chat; that takes no device."""
        return self._sampler.encode(messages)

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Sample:
        """Draw one completion, in the phase `generate`."""
        async with self._phases.phase("generate"):
            return await self._sampler.sample(prompt, sampling)


class PhasedJudge:
    """A judge that is asked only while the device is there for its workers."""

    def __init__(self, judge: Judge, phases: Phases) -> None:
        """Wrap a judge."""
        self._judge = judge
        self._phases = phases

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        """Evaluate one kernel, in the phase `judge`; None where the infrastructure failed."""
        async with self._phases.phase("judge"):
            return await self._judge.evaluate(problem, kernel)
