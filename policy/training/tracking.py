"""Tracking: where the numbers of a run go. JSON lines always; TensorBoard and others through accelerate's trackers."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from drkernel_q import record
from drkernel_q.errors import MissingExtra
from policy.config import flat

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
        self._path = folder / record.FILE
        self._loggers = loggers
        if loggers is not None:
            loggers.init_trackers(run, config=_plain(config))

    def forget_after(self, step: int) -> None:
        """Drop the lines of later steps, which are about to be done again."""
        record.forget_after(self._path, step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the numbers of a step; one that is not finite is null in the file and left out elsewhere."""
        record.append(self._path, step, metrics)
        if self._loggers is not None:
            self._loggers.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step=step)

    def close(self) -> None:
        """Let trackers finish."""
        for tracker in self._loggers.trackers if self._loggers is not None else ():
            tracker.finish()


def check_trackers(names: tuple[str, ...]) -> None:
    """Make sure that the packages of trackers are installed.

    Raises:
        MissingExtra: one is not; the message names it.
    """
    import importlib.util

    for name in names:
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise MissingExtra(f"The tracker `{name}` needs the Python package `{TRACKERS[name]}`, which is not there.")


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as trackers take them: one level, of numbers, truths and texts."""
    plain = bool | int | float | str
    return {name: value if isinstance(value, plain) else json.dumps(value) for name, value in flat(config).items()}
