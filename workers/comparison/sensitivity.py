"""Sensitivity: what becomes of a reference's outputs when one input, parameter or buffer is changed."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from drkernel_q.audit import Sensitivity
from workers.comparison.subject import Subject
from workers.exchange import integrity

#: Rows that are changed one after the other, to estimate which share of a tensor is needed.
ROWS = 4
#: Places that are tried for an element that can become another.
_PLACES = 16


class Prober:
    """Changes subjects in every way until time is over."""

    def __init__(
        self,
        same: Callable[[Sequence[Tensor]], bool],
        moved: Callable[[Sequence[Tensor]], bool],
        *,
        seed: int,
        budget_s: float,
    ) -> None:
        """`same` says whether outputs are what they were, `moved` whether they are beyond the judge's tolerance."""
        self.same = same
        self.moved = moved
        self.random = random.Random(seed)  # noqa: S311 - nobody has to be surprised
        self.ends_at = time.monotonic() + budget_s
        self.in_time = True
        self.found: list[dict[str, Any]] = []

    @property
    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """What was found until now."""
        return tuple(Sensitivity(**facts) for facts in self.found)

    def probe(self, subjects: Sequence[Subject]) -> None:
        """Probe all subjects: first each of them with another draw, then scaled, then by row, then by element."""
        found = [_describe(subject) for subject in subjects]
        self.found += found
        for step in (self._redraw, self._scale, self._rows, self._element):
            for facts, subject in zip(found, subjects, strict=True):
                self.in_time = self.in_time and time.monotonic() < self.ends_at
                if self.in_time:
                    facts.update(step(subject))

    def _redraw(self, subject: Subject) -> Mapping[str, Any]:
        constant = integrity.same_bits(subject.tensor, subject.drawn)
        return {"redraw": None if constant else self._moves(subject, subject.drawn)}

    def _scale(self, subject: Subject) -> Mapping[str, Any]:
        return {"scale": self._moves(subject, scaled(subject.tensor))}

    def _rows(self, subject: Subject) -> Mapping[str, Any]:
        """Change several rows, one at a time; the first that alters anything is held against the tolerance."""
        shape = subject.tensor.shape
        is_matrix = len(shape) > 1
        altered = []
        moved: bool | None = None
        for _ in range(ROWS):
            place = self._place(shape[:-1] if is_matrix else shape)
            changed = with_other_values(subject.tensor, subject.drawn, place)
            outputs = None if changed is None else subject.run(changed)
            if outputs is not None:
                altered.append(not self.same(outputs))
                if altered[-1] and is_matrix and moved is None:
                    moved = self.moved(outputs)
        if not altered:
            return {}
        return {"row": bool(moved) if is_matrix else None, "read_share": sum(altered) / len(altered)}

    def _element(self, subject: Subject) -> Mapping[str, Any]:
        for _ in range(_PLACES):
            changed = with_extreme(subject.tensor, subject.drawn, self._place(subject.tensor.shape))
            if changed is not None:
                return {"element": self._moves(subject, changed)}
        return {}

    def _place(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.random.randrange(size) for size in shape)

    def _moves(self, subject: Subject, changed: Tensor | None) -> bool | None:
        outputs = None if changed is None else subject.run(changed)
        return None if outputs is None else not self.same(outputs) and self.moved(outputs)


def _describe(subject: Subject) -> dict[str, Any]:
    tensor = subject.tensor
    is_number = tensor.dtype is not torch.bool and _has_arithmetic(tensor)
    return {
        "name": subject.name,
        "kind": subject.kind,
        "size_bytes": tensor.numel() * tensor.element_size(),
        "constant": integrity.same_bits(tensor, subject.drawn),
        "nonzero_share": int(torch.count_nonzero(tensor)) / tensor.numel() if is_number else 1.0,
    }


def _has_arithmetic(tensor: Tensor) -> bool:
    """Whether a value may become any other: a whole number may be an index, and torch computes nothing in fp8."""
    wide = tensor.dtype.itemsize > 1 and (tensor.is_floating_point() or tensor.is_complex())
    return wide or tensor.dtype is torch.bool


def scaled(tensor: Tensor) -> Tensor | None:
    """Return the tensor doubled; zeros throughout become ones, truth values their opposite, whole numbers nothing."""
    if not _has_arithmetic(tensor):
        return None
    if tensor.dtype is torch.bool:
        return ~tensor
    return tensor * 2 if bool(tensor.any()) else torch.ones_like(tensor)


def with_other_values(tensor: Tensor, drawn: Tensor, place: tuple[int, ...]) -> Tensor | None:
    """Return a copy whose part at `place` is that of another draw; where it is the same there, a scaled one."""
    part: Tensor | None = drawn[place]
    if part is not None and integrity.same_bits(part, tensor[place]):
        part = scaled(part)
    if part is None:
        return None
    copy = tensor.clone()
    copy[place] = part
    return copy


def with_extreme(tensor: Tensor, drawn: Tensor, place: tuple[int, ...]) -> Tensor | None:
    """Return a copy whose element at `place` has that value of the tensor which is farthest away from its own."""
    if tensor.is_floating_point() and _has_arithmetic(tensor):
        low, high = tensor.min(), tensor.max()
        if bool(low < high):
            copy = tensor.clone()
            copy[place] = low if tensor[place] - low > high - tensor[place] else high
            return copy
    return with_other_values(tensor, drawn, place)
