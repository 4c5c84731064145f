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


class Packed(nn.Module):
    """Holds one weight under another name and shape, one as a buffer, and one that is packed with another."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 4))
        self.other = nn.Parameter(torch.full((4,), 2.0))
        self.both = nn.Parameter(torch.cat([torch.zeros(5), torch.ones(5)]))
        self.register_buffer("gate", torch.zeros((), dtype=torch.float16))
        self.register_buffer("ones", torch.ones(4))


def test_weights_are_replaced_by_their_contents() -> None:
    model = Packed()
    old = [torch.ones(4), torch.zeros(1), torch.ones(5)]
    new = [torch.arange(4.0), torch.full((1,), 0.5), torch.full((5,), 3.0)]
    assert theirs.replace_state(model, old, new) == [True, True, False]
    assert model.scale.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert model.other.tolist() == [2.0] * 4
    assert model.both.tolist() == [0.0] * 5 + [1.0] * 5
    assert float(model.gate) == 0.5
    assert model.ones.tolist() == [1.0] * 4, "a buffer stays where a parameter has what it holds"
    assert model.scale.requires_grad
