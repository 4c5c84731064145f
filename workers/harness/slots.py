"""Slots: buffers that the inputs of timed calls take turns over, and outputs that are kept for as many calls.

Where a tensor lies decides up to half a percent of a call's time, and one place would be the same in all calls.
"""

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from workers.exchange.segment import Segment
from workers.exchange.shared import TensorSpec
from workers.harness.lent import aliases_of


class Slots:
    """As many sets of inputs as take turns, and the outputs of the calls before, so that the next lie elsewhere."""

    def __init__(self, source: Segment, specs: Sequence[TensorSpec], count: int, device: str) -> None:
        """Make `count` buffers on `device` for inputs that will appear in `source`."""
        self._ready = [source.view(spec) for spec in specs]
        self._buffers = [source.read(specs, device) for _ in range(count)]
        self._aliases = [aliases_of(tensors) for tensors in self._buffers]
        self._number = 0
        self._recent: deque[list[Tensor]] = deque()

    @property
    def lent(self) -> list[list[Tensor]]:
        """All that candidate code has been given, or has returned."""
        return [*self._aliases, *self._recent]

    def turn(self) -> list[Tensor]:
        """Copy the inputs that lie ready to the next buffer, and return other objects of its tensors."""
        self._number = (self._number + 1) % len(self._buffers)
        for tensor, content in zip(self._buffers[self._number], self._ready, strict=True):
            tensor.copy_(content)
        return self._aliases[self._number]

    def spent(self) -> list[list[Tensor]]:
        """Give up the outputs whose turn is over when the next call has been made."""
        return self._beyond(len(self._buffers) - 1) if len(self._buffers) > 1 else []

    def keep(self, outputs: list[Tensor]) -> list[list[Tensor]]:
        """Keep the outputs of a call; return those whose turn is over, its own where there is one buffer."""
        self._recent.append(outputs)
        return self._beyond(len(self._buffers))

    def _beyond(self, count: int) -> list[list[Tensor]]:
        return [self._recent.popleft()] if len(self._recent) >= count else []
