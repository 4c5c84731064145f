"""Generators: the states of all that a reference can draw random numbers from."""

import random
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor


class Generators(NamedTuple):
    """The states at one moment."""

    torch: list[Tensor]
    """Of the cpu, and of each CUDA device."""
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> Self:
        """Take the present states."""
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls([torch.get_rng_state(), *devices], random.getstate(), np.random.get_state(legacy=False))

    def same_as(self, other: "Generators") -> bool:
        """Whether nobody has drawn a number in between."""
        same = all(map(torch.equal, self.torch, other.torch)) and self.python == other.python
        return same and repr(self.numpy) == repr(other.numpy)

    def restore(self) -> None:
        """Go back to these states."""
        cpu, *devices = self.torch
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        random.setstate(self.python)
        np.random.set_state(self.numpy)
