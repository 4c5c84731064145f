"""What `drkq problem generate` does: problems, solutions and conversations, written to files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drkernel_q.cli.output import emit_json, emit_table, say
from drkernel_q.curriculum import Exercise, generate
from drkernel_q.curriculum.climb import write_script
from drkernel_q.curriculum.conversation import climbs, single_turns
from drkernel_q.curriculum.folder import write_folder
from drkernel_q.prompt import load_templates
from drkernel_q.store.export import write_lines


class Order(NamedTuple):
    """What the command was asked to do."""

    seed: int
    problems: int
    levels: Sequence[int]
    folder: Path | None
    solutions: bool
    messages: Path | None
    templates: str
    climbs: bool
    script: Path | None
    turns: int


def run(order: Order, *, as_json: bool) -> None:
    """Generate, write, and say what there is.

    Raises:
        BadInput: something cannot be written.
        BadSettings: there is no such set of templates.
    """
    templates = load_templates(order.templates)
    exercises = list(generate(order.seed, order.problems, order.levels))
    if order.folder is not None:
        write_folder(exercises, order.folder, solutions=order.solutions)
    if order.messages is not None:
        over_turns = climbs(exercises, templates, turns=order.turns, seed=order.seed) if order.climbs else ()
        write_lines([*single_turns(exercises, templates), *over_turns], order.messages)
    if order.script is not None:
        write_script(order.script, order.seed, order.problems, order.levels, order.turns)
    document = _summary(order, exercises)
    if as_json:
        emit_json(document)
        return
    emit_table(("level", "problems", "held out", "solutions"), [row.values() for row in document["levels"]])
    for what, place in (("problems", order.folder), ("messages", order.messages), ("script", order.script)):
        if place is not None:
            say(f"{what} in {place}")


def _summary(order: Order, exercises: Sequence[Exercise]) -> dict[str, Any]:
    problems = Counter(exercise.level for exercise in exercises)
    held_out = Counter(exercise.level for exercise in exercises if exercise.split == "heldout")
    solutions = Counter(exercise.level for exercise in exercises for _ in exercise.solutions)
    return {
        "seed": order.seed,
        "levels": [
            {"level": level, "problems": problems[level], "held_out": held_out[level], "solutions": solutions[level]}
            for level in sorted(problems)
        ],
        "folder": order.folder,
        "messages": order.messages,
        "script": order.script,
    }
