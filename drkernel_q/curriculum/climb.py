"""Climbing: the answers of somebody who begins with a bad solution and ends with a good one, told what the judge found.

As the script of a scripted sampler it makes multi-turn trajectories whose feedback is real (`drkq collect`).
"""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from drkernel_q.curriculum.exercise import Exercise, Quality, Solution
from drkernel_q.errors import BadInput
from drkernel_q.kernel import extract_kernel
from drkernel_q.prompt import fenced
from drkernel_q.trajectory import Message

#: From worst to best: what does not run, what is wrong, what is not honest, what does a part, what is slow, the goal.
_ORDER = tuple(Quality)

_SCRIPT = '''"""Answers with generated solutions, from worse to better: the script of a scripted sampler."""

from drkernel_q.curriculum import generate
from drkernel_q.curriculum.climb import Climb

CLIMB = Climb(generate({seed}, {problems}, {levels}), turns={turns})


def answer(prompt, sampling):
    return CLIMB.answer(prompt.messages, sampling.seed)
'''


def write_script(path: Path, seed: int, problems: int, levels: Sequence[int], turns: int) -> None:
    """Write a script for `scripted:FILE.py` that answers about one generated set.

    Raises:
        BadInput: the file cannot be written.
    """
    text = _SCRIPT.format(seed=seed, problems=problems, levels=tuple(levels), turns=turns)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}.") from error


class Climb:
    """Answers prompts about generated problems; each answer is better than the one before, and the last is fused."""

    def __init__(self, exercises: Iterable[Exercise], *, turns: int = 5) -> None:
        """Know these exercises, and climb for so many turns."""
        self._exercises = {exercise.problem.source.strip(): exercise for exercise in exercises}
        self._turns = turns

    def answer(self, messages: Sequence[Message], seed: int | None) -> str:
        """Answer a chat; what is drawn depends on the seed alone.

        Raises:
            BadInput: it is not about a problem that is known.
        """
        exercise = self._find(next(message.content for message in messages if message.role == "user"))
        said = [message.content for message in messages if message.role == "assistant"]
        ranked = sorted(exercise.solutions, key=lambda each: _ORDER.index(each.quality))
        draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
        chosen = self._next(ranked, _place(ranked, said), self._turns - len(said), draw)
        return fenced(chosen.kernel.source, "python")

    def _next(self, ranked: list[Solution], place: int, turns_left: int, draw: random.Random) -> Solution:
        """Draw a better one, leaving room for as many steps as there are turns."""
        goal = next(index for index, each in enumerate(ranked) if each.quality is Quality.FUSED)
        if turns_left <= 1 or place + 1 >= goal:
            return ranked[goal]
        highest = max(place + 1, goal - turns_left + 1)
        return ranked[draw.randint(place + 1, highest)]

    def _find(self, asked: str) -> Exercise:
        for source, exercise in self._exercises.items():
            if source in asked:
                return exercise
        raise BadInput("The prompt is about no problem of this curriculum; are seed and number of problems the same?")


def _place(ranked: list[Solution], said: list[str]) -> int:
    """Place of the last answer among the solutions; -1 before the first."""
    kernel = extract_kernel(said[-1]) if said else None
    sources = [each.kernel.source.strip() for each in ranked]
    return sources.index(kernel.source.strip()) if kernel and kernel.source.strip() in sources else -1
