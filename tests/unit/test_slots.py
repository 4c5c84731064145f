"""Slots: inputs of timed calls take turns over buffers, and outputs are kept until their turn is over."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.exchange.segment import create
from workers.exchange.shared import layout
from workers.harness.slots import Slots


def opened(count: int) -> tuple[Slots, torch.Tensor]:
    """Make slots for one input of three numbers, and a view of where it lies ready."""
    specs, size = layout([torch.zeros(3)])
    segment = create(size, "cpu")
    return Slots(segment, specs, count, "cpu"), segment.view(specs[0])


@given(count=st.integers(1, 8), calls=st.integers(1, 30))
def test_each_call_has_its_own_inputs_and_keeps_outputs_for_as_many_calls_as_there_are_buffers(
    count: int, calls: int
) -> None:
    slots, ready = opened(count)
    given_up: list[int] = []
    addresses = []
    for number in range(calls):
        ready.fill_(number)
        (lent,) = slots.turn()
        assert lent.tolist() == [number] * 3
        addresses.append(lent.data_ptr())
        given_up += [int(outputs[0]) for outputs in slots.spent()]
        given_up += [int(outputs[0]) for outputs in slots.keep([torch.tensor(number)])]
        assert given_up == list(range(max(number + 1 - max(count - 1, 0), 0)))
    assert len(set(addresses)) == min(count, calls)
    assert addresses[count:] == addresses[:-count]


def test_all_that_was_lent_is_known() -> None:
    slots, _ = opened(2)
    (lent,) = slots.turn()
    output = torch.zeros(1)
    slots.keep([output])
    assert any(each is lent for tensors in slots.lent for each in tensors)
    assert any(each is output for tensors in slots.lent for each in tensors)
