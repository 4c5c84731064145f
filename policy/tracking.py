"""Tracking: where the numbers of a run go. JSON lines always; TensorBoard and others through accelerate's trackers."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from drkernel_q.errors import MissingExtra
from policy.config import flat

FILE = "metrics.jsonl"
#: Trackers by the names that accelerate has for them, and the packages that they need.
TRACKERS = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "comet_ml": "comet_ml",
    "aim": "aim",
    "clearml": "clearml",
    "dvclive": "dvclive",
}


class Loggers(Protocol):
    """The part of `accelerate.Accelerator` that tracking needs."""

    def init_trackers(self, project_name: str, config: dict[str, Any] | None = None) -> None:
        """Open the trackers that the accelerator was made with."""

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Give numbers to all of them."""

    @property
    def trackers(self) -> list[Any]:
        """Those that are open."""


class Tracking:
    """The record of a run: a line of JSON for each step, and the same to whatever trackers there are."""

    def __init__(self, folder: Path, loggers: Loggers | None, *, run: str, config: Mapping[str, Any]) -> None:
        """Go on in a folder, or begin there; the trackers are told the configuration."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / FILE
        self._loggers = loggers
        if loggers is not None:
            loggers.init_trackers(run, config=_plain(config))

    def forget_after(self, step: int) -> None:
        """Drop the lines of later steps, which are about to be done again."""
        kept = [line for line in read(self._path) if line["step"] <= step]
        temporary = self._path.with_suffix(f".{os.getpid()}")
        temporary.write_text("".join(_line(line) for line in kept), encoding="utf-8")
        temporary.replace(self._path)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the numbers of a step; one that is not finite is null in the file and left out elsewhere."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line({"step": step, **metrics}))
        if self._loggers is not None:
            self._loggers.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step=step)

    def close(self) -> None:
        """Let trackers finish."""
        for tracker in self._loggers.trackers if self._loggers is not None else ():
            tracker.finish()


def read(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics file; a last line that was cut is left out."""
    return list(_lines(path)) if path.exists() else []


def check_trackers(names: tuple[str, ...]) -> None:
    """Make sure that the packages of trackers are installed.

    Raises:
        MissingExtra: one is not; the message names it.
    """
    import importlib.util

    for name in names:
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise MissingExtra(f"The tracker `{name}` needs the Python package `{TRACKERS[name]}`, which is not there.")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            return


def _line(values: Mapping[str, Any]) -> str:
    finite = {name: None if value is None or not math.isfinite(value) else value for name, value in values.items()}
    return json.dumps(finite) + "\n"


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as trackers take them: one level, of numbers, truths and texts."""
    plain = bool | int | float | str
    return {name: value if isinstance(value, plain) else json.dumps(value) for name, value in flat(config).items()}
