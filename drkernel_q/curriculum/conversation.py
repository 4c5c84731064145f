"""Generated problems as conversations to learn from: a request and a good kernel, or several turns with feedback."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from drkernel_q.curriculum.exercise import Exercise, Quality, Solution
from drkernel_q.curriculum.expected import expected
from drkernel_q.evaluation import Evaluation
from drkernel_q.prompt import Templates, feedback_turn, fenced, first_turn
from drkernel_q.trajectory import Message, Turn
from drkernel_q.value import content_hash

#: What somebody who is not good at it writes, by how often: all there is to learn from and to improve on. No quality
#: is rare, so that reinforcement learning decides between them and need not find them.
BEGINNER: Mapping[Quality, float] = {
    Quality.BROKEN: 0.04,
    Quality.EDGE: 0.06,
    Quality.WRONG: 0.06,
    Quality.DECOY: 0.2,
    Quality.LAZY: 0.2,
    Quality.PARTIAL: 0.14,
    Quality.NAIVE: 0.14,
    Quality.FUSED: 0.16,
}
#: How often a later answer forgets the one before it.
FORGETS = 0.5
#: The facts of a solution, for the feedback on it.
Facts = Callable[[Exercise, Solution], Evaluation | None]


def single_turns(exercises: Iterable[Exercise], templates: Templates) -> Iterator[dict[str, Any]]:
    """Give a row of messages for each training problem: what a rollout would ask, and a fused kernel.

    Nothing of a held-out problem is among them.
    """
    for exercise in exercises:
        if exercise.split == "train":
            kernel = next(each for each in exercise.solutions if each.quality is Quality.FUSED)
            yield _row(exercise, first_turn(exercise.problem, templates), [kernel])


def climbs(
    exercises: Iterable[Exercise], templates: Templates, *, turns: int = 5, every: int = 4, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Give a row of messages over up to `turns` turns for one training problem in `every`: better each time.

    The last answer is fused, and feedback is what it should be. With `data.loss_on = "last"` they teach to write a good
    kernel whatever came before.
    """
    order = [each for each in Quality if each in BEGINNER and each is not Quality.FUSED]
    taught = (exercise for exercise in exercises if exercise.split == "train")
    for exercise in itertools.islice(taught, 0, None, every):
        draw = random.Random(f"climb/{seed}/{exercise.problem.hash}")  # noqa: S311 - reproducible
        places = sorted(draw.sample(range(len(order)), draw.randint(min(turns, 2) - 1, turns - 1)))
        wanted = [*(order[place] for place in places), Quality.FUSED]
        chosen = [draw.choice([each for each in exercise.solutions if each.quality is quality]) for quality in wanted]
        told = [expected(each, draw) for each in chosen]
        yield _row(exercise, _spoken(exercise, chosen, told, templates), chosen)


def walks(
    exercises: Iterable[Exercise],
    templates: Templates,
    *,
    turns: int = 3,
    copies: int = 1,
    seed: int = 0,
    mixture: Mapping[Quality, float] = BEGINNER,
    forgets: float = FORGETS,
    facts: Facts | None = None,
) -> Iterator[dict[str, Any]]:
    """Give rows of messages over several turns for each training problem, with the feedback that a rollout would give.

    The first answer is a beginner's (`mixture`); every other one is too, and unless it `forgets` it is no worse than
    the one before. So conversations climb, and few arrive. Where `facts` knows nothing of a solution, its feedback is
    what it should be.
    """
    for exercise in exercises:
        for copy in range(copies if exercise.split == "train" else 0):
            draw = random.Random(f"walk/{seed}/{exercise.problem.hash}/{copy}")  # noqa: S311 - reproducible
            chosen = _walk(exercise, turns, draw, mixture, forgets)
            told = [(facts(exercise, each) if facts else None) or expected(each, draw) for each in chosen]
            yield _row(exercise, _spoken(exercise, chosen, told, templates), chosen)


def _walk(
    exercise: Exercise, turns: int, draw: random.Random, mixture: Mapping[Quality, float], forgets: float
) -> list[Solution]:
    order = [each for each in Quality if each in mixture]
    chosen: list[Solution] = []
    for _ in range(turns):
        remembers = bool(chosen) and draw.random() > forgets
        rest = order[order.index(chosen[-1].quality) :] if remembers else order
        quality = draw.choices(rest, [mixture[each] for each in rest])[0]
        chosen.append(draw.choice([each for each in exercise.solutions if each.quality is quality]))
    return chosen


def _spoken(
    exercise: Exercise, chosen: Sequence[Solution], told: Sequence[Evaluation], templates: Templates
) -> tuple[Message, ...]:
    """The messages before the last answer."""
    messages = first_turn(exercise.problem, templates)
    for number, (solution, evaluation) in enumerate(zip(chosen[:-1], told, strict=False), start=1):
        answer = _answer(solution)
        turn = Turn(
            number=number, prompt=messages, completion=answer.content, kernel=solution.kernel, evaluation=evaluation
        )
        messages = (*messages, answer, feedback_turn(turn, templates))
    return messages


def _answer(solution: Solution) -> Message:
    return Message(role="assistant", content=fenced(solution.kernel.source, "python"))


def _row(exercise: Exercise, asked: Sequence[Message], chosen: Sequence[Solution]) -> dict[str, Any]:
    messages = [*asked, _answer(chosen[-1])]
    return {
        "uuid": content_hash("conversation", exercise.problem.hash, *(message.content for message in messages)),
        "messages": [message.model_dump() for message in messages],
        "entry_point": "Model",
        "module_name": exercise.problem.name,
        "original_python_code": exercise.problem.source,
        "level": exercise.level,
        "quality": " ".join(each.quality.value for each in chosen),
    }
