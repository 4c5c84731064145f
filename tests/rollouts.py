"""Rollouts without a queue: judges that make facts up, and answers that hold kernels."""

import asyncio
import random

from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.store import Store
from policy.rollouts.rollout import Rollout, RolloutConfig
from policy.sampler.protocol import Prompt, Sampling
from policy.sampler.scripted import ScriptedSampler
from tests.values import an_evaluation


def answer(source: str) -> str:
    return f"```python\nclass ModelNew:\n    {source}\n```"


def by_seed(prompt: Prompt, sampling: Sampling) -> str:
    """An answer that only the seed decides; one in four holds no kernel."""
    drawn = random.Random(sampling.seed)
    return "I do not know." if drawn.random() < 0.25 else answer(f"x = {drawn.randrange(10**9)}")


class FakeJudge:
    """Facts that only the kernel decides; it notes what it was asked, and how many at once."""

    def __init__(self, *, latency_s: float = 0.0, failing: bool = False) -> None:
        self.asked: list[str] = []
        self.most = 0
        self.failing = failing
        self._now = 0
        self._latency_s = latency_s

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        self.asked.append(kernel.source)
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(self._latency_s)
        self._now -= 1
        speedup = 0.5 + random.Random(kernel.source).random()
        return None if self.failing else an_evaluation(speedup=speedup, profile_ratio=0.5)


SMALL = RolloutConfig(group_size=4, turns=3, sampling=Sampling(max_new_tokens=400), templates="compact")


def a_rollout(
    sampler: ScriptedSampler | None = None, judge: FakeJudge | None = None, store: Store | None = None, **config: object
) -> Rollout:
    changed = SMALL.model_copy(update=config)
    return Rollout(sampler or ScriptedSampler(by_seed), judge or FakeJudge(), changed, run="r", seed=7, store=store)
