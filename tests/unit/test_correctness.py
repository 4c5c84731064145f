"""The comparison: honest rounding passes, and every fault that was planted is found."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drkernel_q.correctness import Correctness
from drkernel_q.evaluation import Outcome
from workers.comparison import measure
from workers.comparison.correctness import Comparison, compare, is_degenerate, precision_class
from workers.comparison.measure import Expected, is_as_exact

K = 512


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def expected(working: Tensor, exact: Tensor | None = None, reduction: int = K) -> Expected:
    return Expected({"t": 0}, [working], [exact], reduction)


def judge(working: Tensor, exact: Tensor | None, output: Tensor, reduction: int = K) -> Comparison:
    return compare(expected(working, exact, reduction), [output])


def passes(working: Tensor, exact: Tensor | None, output: Tensor, reduction: int = K) -> bool:
    result = judge(working, exact, output, reduction)
    assert (result.outcome is Outcome.CORRECT) == (result.detail is None)
    assert result.outcome in {Outcome.CORRECT, Outcome.WRONG_VALUE}
    return result.outcome is Outcome.CORRECT


def factors(dtype: torch.dtype = torch.float32, inner: int = K, rows: int = 64) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, inner).to(dtype), torch.randn(inner, 96).to(dtype)


def product_in_steps(left: Tensor, right: Tensor, step: int, dtype: torch.dtype) -> Tensor:
    """Multiply with an accumulator of `dtype`, `step` terms at a time."""
    total = torch.zeros(left.shape[0], right.shape[1], dtype=dtype)
    for start in range(0, left.shape[1], step):
        total += left[:, start : start + step].to(dtype) @ right[start : start + step].to(dtype)
    return total


def to_tf32(tensor: Tensor) -> Tensor:
    """Round to the 10 bits of mantissa that a TF32 product reads."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("inner", [16, 512, 4096])
@pytest.mark.parametrize("step", [1, 16, 128])
def test_another_order_of_an_fp32_product_passes(inner: int, step: int) -> None:
    left, right = factors(inner=inner)
    exact = left.double() @ right.double()
    assert passes(left @ right, exact, product_in_steps(left, right, step, torch.float32), inner)
    assert passes(left @ right, None, product_in_steps(left, right, step, torch.float32), inner), "without fp64"
    assert passes(left @ right, exact, exact.float(), inner)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("inner", [64, 1024])
def test_half_precision_with_an_fp32_accumulator_passes(dtype: torch.dtype, inner: int) -> None:
    left, right = factors(dtype, inner)
    exact = left.double() @ right.double()
    working = (left.float() @ right.float()).to(dtype)
    assert passes(working, exact, product_in_steps(left, right, 16, torch.float32).to(dtype), inner)
    assert passes(working, None, product_in_steps(left, right, 16, torch.float32).to(dtype), inner), "without fp64"


def test_other_formulas_for_the_same_numbers_pass() -> None:
    x = torch.randn(64, 4096)
    wide = x.double()
    cases = {
        "softmax": (x.softmax(-1), wide.softmax(-1), (x - x.logsumexp(-1, keepdim=True)).exp()),
        "gelu": (
            torch.nn.functional.gelu(x),
            torch.nn.functional.gelu(wide),
            0.5 * x * (1 + torch.erf(x * math.sqrt(0.5))),
        ),
        "cumsum": (x.cumsum(-1), wide.cumsum(-1), _blocked_cumsum(x)),
        "mean": (x.mean(-1), wide.mean(-1), (x / 4096).cumsum(-1)[:, -1]),
        "layer_norm": (
            torch.nn.functional.layer_norm(x, (4096,)),
            torch.nn.functional.layer_norm(wide, (4096,)),
            (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-5),
        ),
    }
    for name, (working, exact, other) in cases.items():
        assert passes(working, exact, other, 4096), name


def _blocked_cumsum(x: Tensor) -> Tensor:
    blocks = x.view(len(x), -1, 64).cumsum(-1)
    before = blocks[..., -1].cumsum(-1) - blocks[..., -1]
    return (blocks + before[..., None]).view_as(x)


def _zeroed(rows: slice, columns: slice) -> Callable[[Tensor], Tensor]:
    def plant(output: Tensor) -> Tensor:
        output[rows, columns] = 0
        return output

    return plant


def _put(value: float) -> Callable[[Tensor], Tensor]:
    def plant(output: Tensor) -> Tensor:
        output[31, 17] = value
        return output

    return plant


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "the mean everywhere": lambda y: torch.full_like(y, float(y.double().mean())),
    "the mean of each row": lambda y: y.mean(-1, keepdim=True).expand_as(y),
    "one element": lambda y: y + torch.nn.functional.one_hot(torch.tensor(1234), y.numel()).view_as(y) * y.std(),
    "the sign of one element": lambda y: torch.where(torch.arange(y.numel()).view_as(y) == y.abs().argmax(), -y, y),
    "the last columns": _zeroed(slice(None), slice(-3, None)),
    "the last rows": _zeroed(slice(-1, None), slice(None)),
    "a row": _zeroed(slice(5, 6), slice(None)),
    "a tile": _zeroed(slice(16, 32), slice(32, 64)),
    "rows in another order": lambda y: y.roll(1, dims=0),
    "columns in another order": lambda y: y.roll(1, dims=1),
    "transposed tiles": lambda y: torch.cat([y[:, :64].t(), y[:, 64:]], dim=1),
    "a factor": lambda y: y * 1.01,
    "a shift": lambda y: y + 0.05 * y.std(),
    "noise": lambda y: y + 0.02 * y.std() * torch.randn_like(y),
    "NaN": _put(math.nan),
    "inf": _put(math.inf),
    "-inf": _put(-math.inf),
    "all NaN": lambda y: torch.full_like(y, math.nan),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found(fault: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    left, right = factors(dtype)
    exact = left.double() @ right.double()
    working = exact.to(dtype)
    output = fault(working.double().clone()).to(dtype)
    assert passes(working, exact, working.clone())
    assert not passes(working, exact, output)
    assert not passes(working, None, output)


def test_bfloat16_is_held_to_its_own_rounding() -> None:
    left, right = factors(torch.bfloat16)
    exact = left.double() @ right.double()
    for name in FAULTS.keys() - {"a factor"}:  # 1 % is within the rounding of bf16
        assert not passes(exact.bfloat16(), exact, FAULTS[name](exact.clone()).bfloat16()), name


def test_one_wrong_element_of_a_million_is_found() -> None:
    exact = torch.randn(1000, 1000, dtype=torch.float64)
    for wrong in (torch.tensor(0.01), torch.tensor(-3.0)):
        output = exact.float()
        output[999, 999] += wrong
        result = judge(exact.float(), exact, output)
        assert result.outcome is Outcome.WRONG_VALUE
        assert "at [999, 999]" in str(result.detail)


@pytest.mark.parametrize("inner", [16, 512, 16384])
def test_less_precise_products_are_found(inner: int) -> None:
    left, right = factors(inner=inner, rows=16)
    working, exact = left @ right, left.double() @ right.double()
    tf32 = judge(working, exact, to_tf32(left) @ to_tf32(right), inner)
    assert tf32.outcome is Outcome.WRONG_VALUE
    assert precision_class(tf32.relative_l2) == "tf32"
    assert "look like tf32 arithmetic" in str(tf32.detail)
    assert not passes(working, exact, to_tf32(left) @ to_tf32(right), 10**7), "however long a reduction may be"
    bf16 = judge(working, exact, left.bfloat16().float() @ right.bfloat16().float(), inner)
    assert bf16.outcome is Outcome.WRONG_VALUE
    assert precision_class(bf16.relative_l2) == "bf16"
    assert not passes(working, exact, product_in_steps(left, right, 16, torch.bfloat16).float(), inner)
    assert not passes(working, exact, working.bfloat16().float(), inner), "rounded when stored"
    split = [(to_tf32(side), side - to_tf32(side)) for side in (left, right)]
    (high, low), (top, rest) = split
    assert passes(working, exact, high @ top + (high @ to_tf32(rest) + to_tf32(low) @ top), inner), (
        "three TF32 products"
    )


def test_a_bf16_accumulator_is_found_where_it_is_long() -> None:
    left, right = factors(torch.bfloat16, 4096)
    exact = left.double() @ right.double()
    working = (left.float() @ right.float()).bfloat16()
    assert not passes(working, exact, product_in_steps(left, right, 16, torch.bfloat16), 4096)


def test_a_wide_softmax_is_judged_by_its_own_scale() -> None:
    x = torch.randn(16, 16384)
    working, exact = x.softmax(-1), x.double().softmax(-1)
    for output in (torch.zeros_like(working), torch.full_like(working, 1 / 16384)):
        result = judge(working, exact, output, 16384)
        assert result.outcome is Outcome.WRONG_VALUE
        assert result.allclose, "KernelBench's bound alone would let it pass"
    tail = working.clone()
    tail[:, -1:] = 0
    assert not passes(working, exact, tail, 16384)


def test_a_small_row_is_not_hidden_by_large_ones() -> None:
    exact = torch.randn(4096, 64, dtype=torch.float64)
    exact[7] *= 0.05
    output = exact.clone()
    output[7] *= 1.001
    assert not passes(exact.float(), exact, output.float())


def test_a_small_error_everywhere_is_found_by_its_sum() -> None:
    exact = torch.randn(64, 96, dtype=torch.float64)
    assert passes(exact.bfloat16(), exact, (exact + 0.01).bfloat16())
    assert not passes(exact.bfloat16(), exact, (exact + 0.03).bfloat16())


def test_many_small_errors_are_found_though_each_would_pass_alone() -> None:
    exact = torch.randn(100, 1000, dtype=torch.float64)
    floor = 2e-6 * math.sqrt(K)
    output = exact.clone()
    output[::10, ::10] += 2 * floor
    assert not passes(exact.float(), exact, output.float())
    output = exact.clone()
    output[50, ::100] += 2 * floor
    assert passes(exact.float(), exact, output.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_must_be_so_in_the_same_places(dtype: torch.dtype) -> None:
    exact = torch.randn(32, 64, dtype=torch.float64)
    exact[3, 4], exact[5, 6], exact[7, 8] = math.nan, math.inf, -math.inf
    working = exact.to(dtype)
    assert passes(working, exact, working.clone())
    for place, value in {(3, 4): 0.0, (5, 6): -math.inf, (7, 8): math.nan, (9, 9): math.nan, (3, 5): math.inf}.items():
        output = working.clone()
        output[place] = value
        result = judge(working, exact, output)
        assert result.outcome is Outcome.WRONG_VALUE
        assert f"at [{place[0]}, {place[1]}] expected" in str(result.detail)
        assert "got" in str(result.detail)
    output = torch.where(working.isfinite(), torch.zeros_like(working), working)
    assert not passes(working, exact, output), "NaN is no wildcard for the rest"


def test_a_reference_that_overflows_forgives_nothing_elsewhere() -> None:
    exact = torch.randn(64, 64, dtype=torch.float64)
    exact[::2, 0] = 1e5  # more than fp16 holds
    working = exact.half()
    assert working.isinf().any()
    assert passes(working, exact, working.clone())
    for fault in (torch.zeros_like, lambda y: y.roll(1, dims=1), lambda y: y * 1.1):
        output = torch.where(working.isinf(), working, fault(working.nan_to_num(0, 0, 0)))
        assert not passes(working, exact, output)


def test_the_fp64_run_may_overflow_or_fail_where_the_reference_does_not() -> None:
    working = torch.randn(64, 64)
    exact = working.double()
    exact[:, ::8] = math.nan
    assert passes(working, exact, working.clone())
    assert not passes(working, exact, torch.zeros_like(working))


def test_integers_and_booleans_must_be_equal() -> None:
    indices = torch.randint(0, 1000, (64,))
    assert passes(indices, None, indices.clone())
    wrong = indices.clone()
    wrong[63] += 1
    result = judge(indices, None, wrong)
    assert result.detail == f"1 of 64 elements differ; at [63] expected {indices[63]}, got {wrong[63]}"
    assert not result.allclose
    mask = torch.rand(8, 8) > 0.5
    assert passes(mask, None, mask.clone())
    assert not passes(mask, None, ~mask)
    assert passes(torch.empty(0, dtype=torch.int64), None, torch.empty(0, dtype=torch.int64))


def test_an_index_may_follow_fp64_where_fp32_sees_a_tie_and_nothing_else() -> None:
    of_fp32, of_fp64 = torch.tensor([3, 5, 7]), torch.tensor([3, 6, 7])
    assert passes(of_fp32, of_fp64, of_fp32.clone())
    assert passes(of_fp32, of_fp64, of_fp64.clone())
    assert not passes(of_fp32, of_fp64, torch.tensor([3, 4, 7])), "another near tie"
    assert not passes(of_fp32, of_fp64, torch.tensor([6, 5, 7]))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_are_compared_in_both_parts(dtype: torch.dtype) -> None:
    exact = torch.randn(32, 32, dtype=torch.complex128)
    working = exact.to(dtype)
    assert passes(working, exact, working.clone())
    assert not passes(working, exact, working.conj().resolve_conj())
    assert not passes(working, exact, working.real.to(dtype))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_is_compared_by_value(name: str) -> None:
    exact = torch.randn(64, 64, dtype=torch.float64)
    working = exact.to(getattr(torch, name))
    assert passes(working, exact, working.clone())
    assert not passes(working, exact, torch.zeros(64, 64).to(working.dtype))
    assert not passes(working, exact, exact.roll(1, dims=0).to(working.dtype))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 5)])
def test_an_empty_output_is_correct(shape: tuple[int, ...]) -> None:
    assert judge(torch.empty(shape), torch.empty(shape).double(), torch.empty(shape)) == Comparison(Outcome.CORRECT)


def test_a_scalar_is_held_to_its_relative_error() -> None:
    exact = torch.tensor(2.5, dtype=torch.float64)
    assert passes(exact.float(), exact, torch.tensor(2.500001))
    result = judge(exact.float(), exact, torch.tensor(2.51))
    assert "at []: expected 2.5, got 2.51" in str(result.detail)


def test_errors_beyond_every_number_can_still_be_reported() -> None:
    """An evaluation holds no infinity: figures of a hopeless output must stay numbers."""
    zeros = torch.zeros(4, 4, dtype=torch.float64)
    result = judge(zeros, zeros, torch.full((4, 4), 1e300, dtype=torch.float64))
    assert result.outcome is Outcome.WRONG_VALUE
    Correctness(trials=1, passed=0, max_error=result.max_error, tolerance=result.tolerance)


def test_the_worst_output_speaks_for_all() -> None:
    good, bad = torch.randn(8, 8), torch.randn(8, 8)
    both = Expected({"l": []}, [good, bad], [good.double(), bad.double()], 8)
    assert compare(both, [good.clone(), bad.clone()]).outcome is Outcome.CORRECT
    for outputs, number in (([good, -bad], 1), ([-good, bad], 0), ([-good, -bad], 0)):
        result = compare(both, outputs)
        assert result.outcome is Outcome.WRONG_VALUE
        assert str(result.detail).startswith(f"output {number}: ")
        assert not result.allclose
    slight = good + 1e-6
    result = compare(both, [slight, bad.clone()])
    assert result.outcome is Outcome.CORRECT
    assert result.max_error == compare(both, [slight, bad.clone()]).max_error > 0
    assert result.relative_l2 > 0


@given(st.integers(0, 10**6), st.integers(-20, 20), st.sampled_from(["honest", "tail", "noise"]))
def test_order_of_rows_and_scale_do_not_matter(seed: int, exponent: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(12, 40, dtype=torch.float64, generator=generator)
    working = exact.float()
    output = working + 1e-6 * torch.randn(12, 40, generator=generator)
    if kind == "tail":
        output[-1, -2:] = 0
    elif kind == "noise":
        output += 1e-3 * torch.randn(12, 40, generator=generator)
    first = judge(working, exact, output)
    assert (first.outcome is Outcome.CORRECT) == (kind == "honest")
    order = torch.randperm(12, generator=generator)
    moved = judge(working[order], exact[order], output[order])
    scaled = judge(working * 2.0**exponent, exact * 2.0**exponent, output * 2.0**exponent)
    for other in (moved, scaled):
        assert other.outcome is first.outcome
        assert other.max_error == pytest.approx(first.max_error, rel=1e-9)
        assert other.tolerance == pytest.approx(first.tolerance, rel=1e-9)
        assert other.relative_l2 == pytest.approx(first.relative_l2, rel=1e-9)


@pytest.mark.parametrize("chunk", [1, 40, 100, 10_000])
@pytest.mark.parametrize("fault", ["a row", "the last columns", "noise", "honest"])
def test_chunks_show_what_the_whole_shows(monkeypatch: pytest.MonkeyPatch, chunk: int, fault: str) -> None:
    exact = torch.randn(64, 96, dtype=torch.float64)
    output = (FAULTS[fault](exact.clone()) if fault in FAULTS else exact + 1e-6).float()
    whole = judge(exact.float(), exact, output)
    monkeypatch.setattr(measure, "CHUNK", chunk)
    parts = judge(exact.float(), exact, output)
    assert (parts.outcome, parts.detail) == (whole.outcome, whole.detail)
    assert parts.max_error == whole.max_error
    assert parts.relative_l2 == pytest.approx(whole.relative_l2, rel=1e-12)


def test_a_sampled_quantile_lets_no_large_error_through(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.randn(64, 1024, dtype=torch.float64)
    monkeypatch.setattr(measure, "SAMPLE", 1000)
    monkeypatch.setattr(measure, "CHUNK", 5000)
    assert passes(exact.float(), exact, exact.float() + 1e-7)
    for place in ((0, 0), (40, 500), (63, 1023)):
        output = exact.float()
        output[place] += 0.1
        assert not passes(exact.float(), exact, output)


def test_positions_are_those_of_the_output() -> None:
    exact = torch.randn(3, 4, 5, dtype=torch.float64)
    output = exact.float()
    output[2, 1, 3] += 7
    assert "at [2, 1, 3]" in str(judge(exact.float(), exact, output).detail)
    strided = output.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert "at [2, 1, 3]" in str(judge(exact.float(), exact, strided).detail)


@pytest.mark.parametrize(
    ("working", "degenerate"),
    [
        (torch.zeros(8, 8), True),
        (torch.full((8, 8), 3.0), True),
        (3 + 1e-7 * torch.randn(64, 64), True),
        (1e-30 * torch.ones(8, 8), True),
        (torch.randn(8, 8), False),
        (1e-6 * torch.randn(8, 8), False),
        (3 + 0.01 * torch.randn(64, 64), False),
        (torch.tensor(2.5), False),
        (torch.zeros(8, dtype=torch.int64), False),
        (torch.empty(0), False),
    ],
    ids=["zeros", "constant", "nearly", "tiny", "random", "small", "shifted", "scalar", "integers", "empty"],
)
def test_a_problem_that_a_constant_solves_is_seen(working: Tensor, degenerate: bool) -> None:
    exact = working.double() if working.is_floating_point() else None
    assert is_degenerate(expected(working, exact)) == degenerate


def test_a_reference_is_asked_for_no_more_than_it_can_do() -> None:
    usual = torch.randn(64, 64, dtype=torch.float64)
    expect = expected(usual.float(), usual)
    assert is_as_exact(expect, expect)
    for scale in (1e-3, 16.0):
        assert is_as_exact(expected((usual * scale).float(), usual * scale), expect)
    assert not is_as_exact(expected(usual.half().float(), usual), expect), "less exact than usual"
    overflowed = torch.where(usual == usual.max(), math.inf, usual).float()
    assert not is_as_exact(expected(overflowed, usual), expect), "infinite where it usually is not"
    masked = usual.masked_fill(usual > 1, -math.inf)
    assert is_as_exact(expected(masked.float(), masked), expected(masked.float(), masked)), "infinite as usual"


@pytest.mark.parametrize(
    "working", [torch.empty(0, 4), torch.arange(4), torch.randn(4)], ids=["empty", "index", "none"]
)
def test_what_has_no_error_is_as_exact_as_ever(working: Tensor) -> None:
    exact = working.double() if working.is_floating_point() and not working.numel() else None
    assert is_as_exact(expected(working, exact), expected(working, exact))


def test_precision_classes_are_in_order() -> None:
    errors = [0.0, 1e-14, 3e-7, 3e-4, 2e-3, 0.5]
    assert [precision_class(error) for error in errors] == ["exact", "fp64", "fp32", "tf32", "bf16", "lower"]


def test_whole_numbers_may_be_those_that_the_reference_gives_a_few_roundings_away() -> None:
    working = torch.arange(1000)
    runs: list[int] = []

    def nearby() -> Iterator[list[Tensor]]:
        for place in (3, 5):
            runs.append(place)
            yield [working + (working == place)]

    expect = replace(expected(working, None), nearby=nearby)
    both, other, many = working.clone(), working.clone(), working + 1
    both[[3, 5]] += 1
    other[4] += 1
    assert compare(expect, [both]).outcome is Outcome.CORRECT
    assert runs == [3, 5]
    assert compare(expect, [other]).outcome is Outcome.WRONG_VALUE
    runs.clear()
    assert compare(expect, [many]).outcome is Outcome.WRONG_VALUE
    assert not runs, "it is not asked where more than a few differ"


def test_a_reference_that_gives_another_shape_a_few_roundings_away_decides_nothing() -> None:
    working = torch.arange(1000)
    expect = replace(expected(working, None), nearby=lambda: iter([[torch.arange(999)], [working]]))
    wrong = working.clone()
    wrong[7] = 8
    assert compare(expect, [wrong]).outcome is Outcome.WRONG_VALUE
