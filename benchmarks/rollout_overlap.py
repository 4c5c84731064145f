"""How busy a device is while a rollout samples and judges at the same time.

`python benchmarks/rollout_overlap.py --trajectories 256 --turns 3` runs them with the scripted sampler (1 ms an answer)
against a real queue with a real worker on the `cpu` device, each kernel another one. A device is busy from when its
worker begins with a kernel until the verdict is there; what is measured is the share of the time from the first kernel
that is sent to the last verdict. The worker's own bookkeeping between two kernels counts as idle.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from drkernel_q.evaluation import Evaluation, Protocol, Stage
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem, builtin_files, load_problem
from drkernel_q.settings import Settings
from drkernel_q.store import Store
from policy.rollouts.judging import QueueJudge, open_judge
from policy.rollouts.rollout import GroupOrder, Rollout, RolloutConfig, rollout_groups
from policy.sampler.protocol import Prompt, Sampling
from policy.sampler.scripted import ScriptedSampler

SOURCE = (Path(__file__).parents[1] / "examples" / "softmax.py").read_text()


def another(prompt: Prompt, sampling: Sampling) -> str:
    """A kernel that nobody has asked about yet."""
    return f"```python\n{SOURCE}\n# {sampling.seed}\n```"


class Clocked:
    """A judge that notes how long the device worked for each kernel."""

    def __init__(self, judge: QueueJudge) -> None:
        self.judge = judge
        self.outcomes: list[str] = []
        self.worked_s = 0.0
        self.first = self.last = 0.0

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        asked = time.monotonic()
        found = await self.judge.evaluate(problem, kernel)
        self.last = time.monotonic()
        if found is not None:
            self.outcomes.append(found.outcome.value)
            self.worked_s += found.durations_s["total"]
            # The first that is asked is the first that is taken.
            self.first = self.first or asked
        return found


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings = Settings(data_dir=folder, cache_dir=folder / "cache", device="cpu")
    config = RolloutConfig(
        group_size=options.trajectories // options.groups, turns=options.turns, sampling=Sampling(max_new_tokens=4096)
    )
    stages = tuple(Stage(name) for name in options.stages.split(","))
    protocol = Protocol(stages=stages, trials=2, weight_seeds=1, timing_budget_s=0.1)
    problem = load_problem(builtin_files()["softmax"]).small()
    with Store.open(settings.store) as store:
        store.upgrade()
        async with open_judge(settings, run="overlap", archive=store, device="cpu", protocol=protocol) as judge:
            # The reference is computed, and compiled code is warm, before the clock runs.
            await judge.evaluate(problem, Kernel(source=SOURCE))
            clocked = Clocked(judge)
            sampler = ScriptedSampler(another, latency_s=options.latency_ms / 1e3)
            rollout = Rollout(sampler, clocked, config, run="overlap", store=store)
            problems = [
                Problem(name=f"softmax {n}", source=f"{problem.source}\n# {n}\n") for n in range(options.groups)
            ]
            turns = 0
            async for _, group in rollout_groups([GroupOrder(each) for each in problems], rollout):
                turns += sum(len(trajectory.turns) for trajectory in group.trajectories)
    whole_s = clocked.last - clocked.first
    return {
        "turns": turns,
        "judged": len(clocked.outcomes),
        "correct": clocked.outcomes.count("correct"),
        "wall_s": round(whole_s, 2),
        "device_s": round(clocked.worked_s, 2),
        "busy": round(clocked.worked_s / whole_s, 4),
        "kernel_s": round(clocked.worked_s / max(1, len(clocked.outcomes)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=32)
    parser.add_argument("--groups", type=int, default=1, help="problems that the trajectories are divided among")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=1.0)
    parser.add_argument("--stages", default="correctness,integrity,profile,timing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="drkq-o-", dir="/tmp") as folder:
        print(json.dumps(asyncio.run(measure(options, Path(folder)))))


if __name__ == "__main__":
    main()
