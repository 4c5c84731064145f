"""Theirs: what the harness does with a candidate's model, and what of the model's own it calls meanwhile."""

from typing import Any

import torch
from torch import nn

from workers.harness import theirs


class Counting(nn.Module):
    """Has methods and attributes of its own for whatever could be asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)
        self.again = self.inner
        self.register_buffer("seen", torch.ones(1))
        self._modules["itself"] = self

    def _asked(self, *_: object, **__: object) -> Any:
        raise AssertionError("a method of the model was called")

    named_parameters = named_buffers = named_modules = parameters = buffers = children = state_dict = _asked
    __class__ = property(_asked)  # type: ignore[assignment]


def test_no_method_of_a_model_is_called_for_its_state() -> None:
    model = Counting()
    assert set(theirs.state_checksums(model)) == {"inner.weight", "inner.bias", "seen"}
    before = theirs.state_checksums(model)
    with torch.no_grad():
        model.inner.bias.add_(1)
    after = theirs.state_checksums(model)
    assert {name for name in before if before[name] != after[name]} == {"inner.bias"}
    assert before["seen"][0] is False
    assert before["inner.bias"][0] is True
