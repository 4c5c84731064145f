"""Integrity: what is wrong with an output."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drkernel_q.observation import Weight
from workers.exchange import integrity
from workers.exchange.integrity import OUTPUT_RULES, checksum, fingerprint, is_plain, output_codes, same_bits

X = torch.randn(4, 6)
WEIGHT = nn.Parameter(torch.randn(6))


class Lazy(Tensor):
    pass


def _with_attribute() -> Tensor:
    output = X.clone()
    vars(output)["cpu"] = lambda: X
    return output


def _as_lazy_copy() -> Tensor:
    return torch._lazy_clone(X.clone())


BROKEN: dict[str, tuple[str, Callable[[], list[Tensor]]]] = {
    "subclass": ("D3", lambda: [X.clone().as_subclass(Lazy)]),
    "subclass beside a tensor": ("D3", lambda: [X.clone(), X.clone().as_subclass(Lazy)]),
    "attribute": ("D4", lambda: [_with_attribute()]),
    "expanded": ("C9", lambda: [torch.ones(1).expand(4, 6)]),
    "expanded rows": ("C9", lambda: [torch.ones(1, 6).expand(4, 6)]),
    "negated view": ("C10", lambda: [torch._neg_view(X.clone())]),
    "conjugated view": ("C10", lambda: [torch.randn(4, dtype=torch.complex64).conj()]),
    "copy on write": ("C10", lambda: [_as_lazy_copy()]),
    "sparse": ("C11", lambda: [X.to_sparse()]),
    "csr": ("C11", lambda: [X.to_sparse_csr()]),
    "the input": ("A11", lambda: [X]),
    "a view of the input": ("A11", lambda: [X[1:]]),
    "a transposed input": ("A11", lambda: [X.t()]),
    "the parameter": ("A11", lambda: [WEIGHT.detach()]),
    "the same tensor twice": ("B7", lambda: [(y := X.clone()), y]),
    "two views of one tensor": ("B7", lambda: [(y := X.clone())[:3], y[2:]]),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(("code", "make"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_with_an_output_has_its_code(code: str, make: Callable[[], list[Tensor]]) -> None:
    assert code in output_codes(make(), [X, WEIGHT])
    if code not in {"A11", "B7"}:
        assert output_codes(make(), []) == [code], "and no other code comes with it"


def test_every_rule_is_provoked_here_and_has_its_words() -> None:
    assert {code for code, _ in BROKEN.values()} == set(OUTPUT_RULES)
    assert all(weight in {Weight.SOFT, Weight.HARD} and text for weight, text in OUTPUT_RULES.values())


HONEST: dict[str, Callable[[], list[Tensor]]] = {
    "two parts of one tensor": lambda: list(X.clone().chunk(2)),
    "fresh": lambda: [X * 2],
    "transposed": lambda: [(X * 2).t()],
    "part of a larger one": lambda: [(X * 2)[:, :3]],
    "parts of one tensor": lambda: list((X * 2).chunk(2)),
    "columns of one matrix": lambda: [(y := X * 2)[:, 0], y[:, 1], y[:, 2:]],
    "every second element": lambda: [(y := X * 2)[:, ::2], y[:, 1::2]],
    "reshaped": lambda: [(X * 2).reshape(-1)],
    "scalar": lambda: [X.sum()],
    "empty": lambda: [torch.empty(0), torch.empty(0, 3), torch.empty(3, 0).t()],
    "two": lambda: [X * 2, X * 2],
    "parameter": lambda: [nn.Parameter(X * 2)],
    "needs a gradient": lambda: [X * WEIGHT],
    "integers": lambda: [X.argmax(-1), X > 0],
    "resolved": lambda: [torch.randn(4, dtype=torch.complex64).conj().resolve_conj()],
    "one row": lambda: [(X * 2)[:1].expand(1, 6)],
    "none": list,
}


@pytest.mark.parametrize("make", HONEST.values(), ids=HONEST)
def test_an_honest_output_has_no_code(make: Callable[[], list[Tensor]]) -> None:
    assert output_codes(make(), [X, WEIGHT]) == []


def test_empty_inputs_are_not_shared_memory() -> None:
    assert output_codes([torch.empty(0)], [torch.empty(0), torch.empty(0, 4)]) == []


def test_plain_is_the_exact_type() -> None:
    assert is_plain(X)
    assert is_plain(WEIGHT)
    for other in (X.as_subclass(Lazy), object(), 1.0, None, [X]):
        assert not is_plain(other)


def test_bits_are_compared_and_not_numbers() -> None:
    nan = torch.tensor([math.nan, 1.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2))
    assert same_bits(torch.empty(0, 3), torch.empty(0, 3))
    assert not same_bits(torch.empty(0, 3), torch.empty(3, 0))
    assert same_bits(X.t(), X.t().contiguous())
    assert same_bits(torch.tensor(True), torch.tensor(True))


@pytest.mark.parametrize(
    "tensor",
    [X, X.t(), X[:, ::2], X.half(), X.double(), X > 0, X.to(torch.float8_e5m2), X.to(torch.complex64), X[:0], X[0, 0]],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}",
)
def test_a_checksum_is_of_the_bits_wherever_they_lie(tensor: Tensor) -> None:
    assert checksum(tensor) == checksum(tensor.contiguous()) == checksum(tensor.clone())
    if tensor.numel():
        changed = tensor.contiguous().clone()
        changed.view(-1).view(torch.uint8)[-1] ^= 1
        assert checksum(changed) != checksum(tensor)


@pytest.mark.parametrize("shape", [(), (1,), (7, 5, 3), (1, 1000), (1000, 1), (0, 4)])
def test_a_checksum_of_parts_is_that_of_the_whole(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(shape)
    whole = checksum(tensor), checksum(tensor.mT if tensor.dim() > 1 else tensor)
    monkeypatch.setattr(integrity, "PART", 10)
    assert (checksum(tensor), checksum(tensor.mT if tensor.dim() > 1 else tensor)) == whole
    assert len(integrity._parts(torch.zeros(1000, 3))) > 100


@given(
    shape=st.sampled_from([(24,), (4, 6), (2, 3, 4)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]),
    piece=st.sampled_from([1, 5, 100]),
    seed=st.integers(0, 99),
)
def test_a_fingerprint_is_of_the_order_too(shape: tuple[int, ...], dtype: torch.dtype, piece: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randint(0, 2, shape, generator=generator).to(dtype)
    other = tensor.flatten()[torch.randperm(24, generator=generator)].view(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrity, "PIECE", piece)
        assert fingerprint(tensor) == fingerprint(tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor.clone())
        assert checksum(tensor) == checksum(other)
        assert (fingerprint(tensor) == fingerprint(other)) == bool((tensor == other).all())


@pytest.mark.parametrize(
    "tensor", [X.to(torch.float8_e5m2), X[:0], X[0, 0], torch._neg_view(X)], ids=["fp8", "empty", "one", "lazy"]
)
def test_everything_has_a_fingerprint(tensor: Tensor) -> None:
    assert fingerprint(tensor) == fingerprint(tensor.clone())


def test_a_checksum_sees_through_lazy_views() -> None:
    numbers = torch.randn(4, dtype=torch.complex64)
    assert checksum(numbers.conj()) == checksum(numbers.conj().resolve_conj())
    assert checksum(torch._neg_view(X)) == checksum(-X)
