"""Record: the numbers of a run that learns, a line of JSON for each step, in a file that the run may be writing."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Name of the file in a run's folder.
FILE = "metrics.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    """Read the lines that are whole; a run that was killed may have left a part of one. No file: no lines."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        return [line for text in file if (line := _whole(text)) is not None]


def append(path: Path, step: int, values: Mapping[str, float | None]) -> None:
    """Add the numbers of a step; one that is not finite is null."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_line({"step": step, **values}))


def forget_after(path: Path, step: int) -> list[dict[str, Any]]:
    """Drop the lines of later steps, which are about to be done again, and what is no whole line; return the others."""
    kept = [line for line in read(path) if line["step"] <= step]
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text("".join(map(_line, kept)), encoding="utf-8")
    temporary.replace(path)
    return kept


def _whole(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    return line if isinstance(line, dict) and "step" in line else None


def _line(values: Mapping[str, Any]) -> str:
    finite = {name: None if value is None or not math.isfinite(value) else value for name, value in values.items()}
    return json.dumps(finite) + "\n"
