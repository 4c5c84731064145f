"""Generated problems as conversations to learn from: a request and a good kernel."""

from collections.abc import Iterable, Iterator
from typing import Any

from drkernel_q.curriculum.exercise import Exercise, Quality
from drkernel_q.prompt import Templates, fenced, first_turn
from drkernel_q.value import content_hash


def single_turns(exercises: Iterable[Exercise], templates: Templates) -> Iterator[dict[str, Any]]:
    """Give a row of messages for each training problem: what a rollout would ask, and a fused kernel.

    Nothing of a held-out problem is among them.
    """
    for exercise in exercises:
        if exercise.split == "train":
            yield _row(exercise, templates)


def _row(exercise: Exercise, templates: Templates) -> dict[str, Any]:
    kernel = next(each.kernel for each in exercise.solutions if each.quality is Quality.FUSED)
    asked = [message.model_dump() for message in first_turn(exercise.problem, templates)]
    answer = {"role": "assistant", "content": fenced(kernel.source, "python")}
    return {
        "uuid": content_hash("conversation", exercise.problem.hash, kernel.hash),
        "messages": [*asked, answer],
        "entry_point": "Model",
        "module_name": exercise.problem.name,
        "original_python_code": exercise.problem.source,
        "level": exercise.level,
        "quality": Quality.FUSED.value,
    }
