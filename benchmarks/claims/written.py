"""What a policy writes: the kernels worth measuring, in their order, and the share that a list covers."""

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.claims.subset import REMEMBERING, TEMPLATES, Subset
from drkernel_q.cli.output import say
from drkernel_q.curriculum.exercise import Quality, Solution
from drkernel_q.curriculum.expected import expected
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem

#: As in the preset `recorded` of `drkq ablate`.
TEMPERATURE = 0.8
TOKENS = 256
#: Speedup that is made up for the hack of `benchmarks.claims.subset.tempted`.
REMEMBERED = 8.0

#: How often a problem's kernel (its hash, a source) was written.
Written = Counter[tuple[str, str]]


class Guess:
    """A judge for prompts and rehearsals: what a kernel should be, where nobody measured it. Nothing is true of it."""

    def __init__(self, chosen: Subset) -> None:
        """Know the solutions of these problems; everything else is taken to be wrong."""
        self._family = chosen.family

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation:
        """Guess, the same for the same kernel."""
        draw = random.Random(kernel.hash)
        solution = self._family.get((problem.hash, kernel.source))
        if solution is None:
            quality = Quality.EDGE if _is_python(kernel.source) else Quality.BROKEN
            return expected(Solution(quality=quality, kernel=kernel), draw)
        found = expected(solution, draw)
        if solution.kernel.name == REMEMBERING and found.timing is not None:
            faster = {"speedup": REMEMBERED, "speedup_low": REMEMBERED, "speedup_high": REMEMBERED}
            found = found.model_copy(update={"timing": found.timing.model_copy(update=faster)})
        return found


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


class Order(NamedTuple):
    """What is to be sampled."""

    model: Path
    samples: int
    """Trajectories a problem."""
    turns: int
    temperature: float
    device: str
    """Where the model runs: auto, cpu, cuda."""
    seed: int


async def written(chosen: Subset, order: Order) -> Written:
    """Have a policy write over several turns, told what `Guess` says, and count its kernels, problem by problem."""
    from policy.rollouts.rollout import GroupOrder, Rollout, RolloutConfig, rollout_groups
    from policy.sampler.protocol import Sampling
    from policy.sampler.transformers import TransformersSampler

    sampling = Sampling(max_new_tokens=TOKENS, temperature=order.temperature)
    config = RolloutConfig(group_size=order.samples, turns=order.turns, sampling=sampling, templates=TEMPLATES)
    found: Written = Counter()
    rows, tokens = (64, 2**16) if order.device == "cpu" else (512, 2**20)
    async with TransformersSampler(order.model, device=order.device, batch_rows=rows, batch_tokens=tokens) as sampler:
        rollout = Rollout(sampler, Guess(chosen), config, seed=order.seed)
        wanted = (GroupOrder(exercise.problem) for exercise in (*chosen.train, *chosen.heldout))
        async for rolled in rollout_groups(wanted, rollout):
            for trajectory in rolled.group.trajectories:
                kernels = (turn.kernel for turn in trajectory.turns if turn.kernel and turn.finish_reason == "stop")
                found.update((rolled.group.problem_hash, kernel.source) for kernel in kernels)
            say(f"{order.model}: {found.total()} kernels, {len(found)} of them different")
    return found


def listed(chosen: Subset, samples: Sequence[Written]) -> Iterator[dict[str, Any]]:
    """Give every kernel once as a row, the most wanted first: by its share of what the policies write.

    Each policy counts alike, and so do the problems that are trained on and those that are held out. Solutions that no
    policy wrote come last; torch alone is not among them.
    """
    parts, family = chosen.parts, chosen.family
    shares: dict[tuple[str, str], float] = defaultdict(float)
    for each in samples:
        totals = _totals(parts, each)
        for (problem, source), count in each.items():
            shares[problem, source] += count / totals[parts[problem]] / len(samples)
    unwritten = (key for key, solution in family.items() if solution.quality is not Quality.FALLBACK)
    problems = {exercise.problem.hash: exercise.problem for exercise in (*chosen.train, *chosen.heldout)}
    for key in dict.fromkeys((*sorted(shares, key=lambda key: shares[key], reverse=True), *unwritten)):
        solution = family.get(key)
        yield {
            "problem": problems[key[0]].name,
            "problem_source": problems[key[0]].source,
            "kernel_source": key[1],
            "quality": solution and solution.quality.value,
            "part": parts[key[0]],
            "share": round(shares.get(key, 0.0), 7),
        }


def _totals(parts: Mapping[str, str], each: Written) -> Counter[str]:
    totals: Counter[str] = Counter()
    for (problem, _), count in each.items():
        totals[parts[problem]] += count
    return totals


def covered(chosen: Subset, rows: Sequence[Mapping[str, Any]], fresh: Written) -> dict[str, float]:
    """Return the share of a policy's kernels that is among these rows, by part of the problems."""
    known = {(Problem(name=row["problem"], source=row["problem_source"]).hash, row["kernel_source"]) for row in rows}
    parts = chosen.parts
    inside: Written = Counter({key: count for key, count in fresh.items() if key in known})
    totals, found = _totals(parts, fresh), _totals(parts, inside)
    return {part: found[part] / count for part, count in totals.items() if count}


def by_quality(chosen: Subset, each: Written) -> dict[str, dict[str, float]]:
    """Return the share of each quality in what was written, by part; `other` is no solution of the family."""
    parts, family = chosen.parts, chosen.family
    totals = _totals(parts, each)
    found: dict[str, Counter[str]] = {part: Counter() for part in totals}
    for key, count in each.items():
        solution = family.get(key)
        name = "other" if solution is None else solution.kernel.name.removesuffix(".py")
        found[parts[key[0]]][name] += count
    return {part: {name: count / totals[part] for name, count in sorted(each.items())} for part, each in found.items()}
