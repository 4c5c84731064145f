"""Live: what people see while a run trains: a view that renews itself on a terminal, one line a step elsewhere."""

import sys
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from drkernel_q.cli.output import printable, say
from policy.training.recipe import TrainConfig
from policy.training.telemetry import Metrics

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live as RichLive

#: Steps that the view shows.
SHOWN = 12
#: Columns of the view: a title, and the number of a step that it shows.
COLUMNS = {
    "reward": "reward/mean",
    "fast@1": "fast_1/turn_{last}",
    "fast@1.2": "fast_1.2/turn_{last}",
    "correct": "rate/honest",
    "hack": "rate/hack",
    "lazy": "rate/lazy",
    "infra": "rate/infrastructure",
    "MRS": "mrs/acceptance",
    "entropy": "policy/entropy",
    "grad": "policy/grad_norm",
    "seconds": "time/step_s",
}


class Live:
    """The view of one run, as a context."""

    def __init__(self, config: TrainConfig) -> None:
        """Take the configuration, for the number of steps and turns."""
        self._config = config
        self._began = time.monotonic()
        self._first: int | None = None
        self._steps: deque[tuple[int, Metrics]] = deque(maxlen=SHOWN)
        self._doing = "getting ready"
        self._view: RichLive | None = None

    def __enter__(self) -> Self:
        """Begin to show."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live as RichLive

            self._view = RichLive(get_renderable=self._render, console=Console(stderr=True), refresh_per_second=4)
            self._view.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the last view on the screen."""
        if self._view is not None:
            self._view.stop()

    def tell(self, text: str) -> None:
        """Say what is being done."""
        if text != self._doing and self._view is None:
            say(text)
        self._doing = text

    def at(self, text: str) -> None:
        """Say where in a step the run is; only a terminal is told."""
        self._doing = text

    def report(self, step: int, metrics: Metrics) -> None:
        """Show a step that is done."""
        self._first = step if self._first is None else self._first
        self._steps.append((step, metrics))
        if self._view is None:
            say(line(step, metrics, self._config))

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for title in ("step", *COLUMNS):
            table.add_column(title, justify="right")
        for step, metrics in self._steps:
            table.add_row(str(step), *(_cell(metrics.get(name)) for name in _names(self._config).values()))
        return Group(table, Text(printable(f"{self._progress()}  {self._doing}")))

    def _progress(self) -> str:
        done = self._steps[-1][0] if self._steps else 0
        passed_s = time.monotonic() - self._began
        text = f"step {done} of {self._config.steps}, {passed_s:.0f} s"
        if self._first is None:
            return text
        left_s = passed_s / (done - self._first + 1) * (self._config.steps - done)
        return f"{text}, about {left_s:.0f} s left"


def line(step: int, metrics: Metrics, config: TrainConfig) -> str:
    """Write one line about a step."""
    shown = [f"{title} {_cell(metrics[name])}" for title, name in _names(config).items() if name in metrics]
    return f"step {step}/{config.steps}  " + "  ".join(shown)


def _names(config: TrainConfig) -> dict[str, str]:
    return {title: name.format(last=config.rollout.turns) for title, name in COLUMNS.items()}


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}"
