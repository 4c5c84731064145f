"""Collections without a queue, for tests and for the processes that they kill."""

from typing import Any

from drkernel_q.store import Store
from policy.rollouts.collect import CollectConfig, Collection
from policy.rollouts.rollout import RolloutConfig
from policy.sampler.protocol import Sampling
from policy.sampler.scripted import ScriptedSampler
from tests.rollouts import FakeJudge, by_seed

SMALL = CollectConfig(
    model="scripted",
    problems=("softmax", "matmul"),
    seed=3,
    rollout=RolloutConfig(group_size=4, turns=5, sampling=Sampling(max_new_tokens=400), templates="compact"),
)


def a_collection(store: Store, config: CollectConfig = SMALL, *, latency_s: float = 0.0, **judge: Any) -> Collection:
    sampler = ScriptedSampler(by_seed, latency_s=latency_s)
    return Collection(sampler, FakeJudge(**judge), config, run="cold", store=store)
