"""Bench: samples of a whole suite, from a model or from a folder of kernels; nothing about one problem stops it."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from drkernel_q.errors import BadKernelFile, BadProblem
from drkernel_q.kernel import Kernel, read_kernel
from drkernel_q.problem import Problem
from drkernel_q.trajectory import Group, Trajectory, Turn
from policy.rollouts.rollout import GroupOrder, Rollout, rollout_groups

log = logging.getLogger(__name__)

#: Name of a kernel's file: `1_23_softmax.py`, or as KernelBench's own scripts write it.
_NUMBERED = re.compile(r"(?P<level>[1-4])_(?P<number>\d+)(_.*)?")
_KERNELBENCH = re.compile(r"level_(?P<level>[1-4])_problem_(?P<number>\d+)_sample_\d+_kernel")
_SAMPLE = re.compile(r"(?P<name>.+?)-\d+")


def kernel_files(folder: Path, problems: Iterable[Problem]) -> dict[str, list[Path]]:
    """Find the kernels of each problem by their file names, samples in order; by hash of the problem.

    `softmax.py` or `softmax-2.py` (a second sample) for the problem softmax; for 1/23_Softmax of KernelBench
    `1_23_Softmax.py`, `1_23_anything.py` or `level_1_problem_23_sample_0_kernel.py`.

    Raises:
        BadKernelFile: there is no such folder.
    """
    if not folder.is_dir():
        raise BadKernelFile(f"{folder} is no folder of kernels.")
    by_name: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*.py")):
        for name in _names(file.stem):
            by_name.setdefault(name, []).append(file)
    return {problem.hash: _of(problem, by_name) for problem in problems}


def _names(stem: str) -> set[str]:
    """What problem a file may be about."""
    names = {stem}
    if sample := _SAMPLE.fullmatch(stem):
        names.add(sample["name"])
    if numbered := _KERNELBENCH.fullmatch(stem) or _NUMBERED.fullmatch(stem):
        names.add(f"{numbered['level']}/{int(numbered['number'])}")
    return names


def _of(problem: Problem, by_name: Mapping[str, list[Path]]) -> list[Path]:
    level, _, rest = problem.name.partition("/")
    names = [problem.name, problem.name.replace("/", "_"), f"{level}/{rest.partition('_')[0]}"]
    return sorted({file for name in names for file in by_name.get(name, [])}, key=_order)


def _order(file: Path) -> tuple[Path, list[str | int]]:
    """Numbers in names count as numbers, so that a second sample comes before a tenth."""
    return file.parent, [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", file.stem)]


async def sampled(problems: Sequence[Problem], rollout: Rollout) -> AsyncIterator[tuple[Problem, Group]]:
    """Have a model write for every problem; one that cannot be used has no group.

    Raises:
        NoSampler, Unavailable: as `rollout_groups`.
    """
    async for rolled in rollout_groups([GroupOrder(problem) for problem in problems], rollout):
        yield rolled.order.problem, rolled.group


async def collected(
    problems: Sequence[Problem],
    files: Mapping[str, Sequence[Path]],
    rollout: Rollout,
    refused: Callable[[str], None],
    *,
    in_flight: int = 64,
) -> AsyncIterator[tuple[Problem, Group]]:
    """Have the kernels of files judged, each as a trajectory of one turn; stored ones are not judged again.

    A file that cannot be read and a problem that cannot be used are told to `refused`; a kernel that nobody could
    judge is not stored, so that it is tried again when the run goes on.

    Raises:
        Unavailable: nobody judges, and nobody will.
    """
    room = asyncio.Semaphore(in_flight)
    tasks = [asyncio.create_task(_group(each, files.get(each.hash, ()), rollout, refused, room)) for each in problems]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _group(
    problem: Problem,
    files: Sequence[Path],
    rollout: Rollout,
    refused: Callable[[str], None],
    room: asyncio.Semaphore,
) -> tuple[Problem, Group]:
    await rollout.announce(problem)
    judged = []
    for number, file in enumerate(files[: rollout.config.group_size], start=1):
        try:
            async with room:
                turns = await _judged(problem, number, read_kernel(file), rollout)
        except (BadKernelFile, BadProblem) as error:
            refused(f"{problem.name}: {error}")
            turns = ()
        judged.append(Trajectory(problem_hash=problem.hash, turns=turns))
    return problem, Group(problem_hash=problem.hash, trajectories=tuple(judged))


async def _judged(problem: Problem, number: int, kernel: Kernel, rollout: Rollout) -> tuple[Turn, ...]:
    stored = (await rollout.stored(problem, number)).turns
    if stored and stored[0].kernel == kernel:
        return stored
    evaluation = await rollout.judge.evaluate(problem, kernel)
    turn = Turn(number=1, prompt=(), completion=kernel.source, kernel=kernel, evaluation=evaluation)
    if evaluation is not None and not stored:
        await rollout.keep(problem, number, turn)
    return (turn,)
