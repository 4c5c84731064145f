"""A generated set in a folder: problem files by part and level, solutions by problem, and a manifest."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drkernel_q.curriculum.exercise import Exercise, Split
from drkernel_q.errors import BadInput, BadProblem
from drkernel_q.problem import Problem, load_problem

MANIFEST = "manifest.json"


def write_folder(exercises: Iterable[Exercise], folder: Path, *, solutions: bool) -> dict[str, Any]:
    """Write `problems/PART/levelN/NAME.py`, `solutions/NAME/QUALITY.py` and the manifest, which is returned.

    Raises:
        BadInput: the folder is there and not empty, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"{folder} is not empty; name a new folder.")
        manifest = {"problems": [_write(exercise, folder, solutions=solutions) for exercise in exercises]}
        # Last, so that a folder with a manifest is whole.
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}.") from error
    return manifest


def load_generated(folder: Path, part: Split | None = None) -> list[Problem]:
    """Load the problems of a generated set in their order, all of them or those of one part.

    Raises:
        BadProblem: the folder holds no generated set, or a file is missing.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        rows = [row for row in manifest["problems"] if part in (None, row["split"])]
        return [load_problem(folder / row["file"]) for row in rows]
    except OSError as error:
        raise BadProblem(f"{folder} holds no generated problems: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError):
        raise BadProblem(f"{folder / MANIFEST} is no manifest of generated problems.") from None


def _write(exercise: Exercise, folder: Path, *, solutions: bool) -> dict[str, Any]:
    problem = exercise.problem
    file = Path("problems") / exercise.split / f"level{exercise.level}" / f"{problem.name}.py"
    _write_text(folder / file, problem.source)
    row: dict[str, Any] = {
        "name": problem.name,
        "file": file.as_posix(),
        "level": exercise.level,
        "split": exercise.split,
        "chain": list(exercise.chain),
        "hash": problem.hash,
    }
    return row | ({"solutions": _write_solutions(exercise, folder)} if solutions else {})


def _write_solutions(exercise: Exercise, folder: Path) -> list[dict[str, Any]]:
    rows = []
    for solution in exercise.solutions:
        file = Path("solutions") / exercise.problem.name / solution.kernel.name
        _write_text(folder / file, solution.kernel.source)
        rows.append({"quality": solution.quality.value, "file": file.as_posix(), "hash": solution.kernel.hash})
    return rows


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
