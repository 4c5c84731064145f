"""Less precise classes of products: honest rounding is named for what it is, and nothing else passes for it."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from drkernel_q.correctness import Precision
from drkernel_q.evaluation import Outcome
from drkernel_q.problem import builtin_files, load_problem
from workers.comparison import measure
from workers.comparison.arithmetic import ROUNDINGS, Rounding, largest_value, products_in, rounded
from workers.comparison.correctness import Comparison, compare
from workers.comparison.downgrade import overlay, unevenness
from workers.comparison.measure import Expected, can_tell, is_as_exact, row_scale
from workers.comparison.reference import Reference

NEAREST, MIDDLE, TRUNCATED = ROUNDINGS[Precision.TF32]
(HALF,) = ROUNDINGS[Precision.FP16]
(BRAIN,) = ROUNDINGS[Precision.BF16]
WAYS = {"tf32": NEAREST, "truncated": TRUNCATED, "fp16": HALF, "bf16": BRAIN}
#: What each way of rounding is called: the errors of fp16 are those of TF32.
NAMES = {"tf32": "tf32", "truncated": "tf32", "fp16": "tf32", "bf16": "bf16"}
Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def expect(function: Function, *inputs: Tensor) -> Expected:
    def rerun(rounding: Rounding) -> list[Tensor]:
        with torch.no_grad(), rounded(rounding):
            return [function(*inputs)]

    exact = function(*(tensor.double() for tensor in inputs))
    return Expected({"t": 0}, [function(*inputs)], [exact], 4096, rerun, tuple(ROUNDINGS))


def judge(function: Function, inputs: tuple[Tensor, ...], output: Tensor) -> Comparison:
    result = compare(expect(function, *inputs), [output])
    assert (result.outcome is Outcome.CORRECT) == (result.detail is None)
    assert (result.precision is Precision.REFERENCE) or result.label == result.precision
    return result


def product_in_steps(left: Tensor, right: Tensor, step: int, dtype: torch.dtype) -> Tensor:
    """Multiply operands of `dtype`, and add `step` terms at a time in `dtype`."""
    total = torch.zeros(left.shape[0], right.shape[1], dtype=dtype)
    for start in range(0, left.shape[1], step):
        terms = left[:, start : start + step].to(dtype).float() @ right[start : start + step].to(dtype).float()
        total = (total.float() + terms).to(dtype)
    return total.float()


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value)


def attention_by_blocks(rounding: Rounding, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend as kernels do: the scale is folded into the query, and weights are rounded before they are normalised."""
    scores = rounding(query * (math.log2(math.e) / math.sqrt(query.shape[-1]))) @ rounding(key).mT
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return rounding(weights) @ rounding(value) / weights.sum(-1, keepdim=True)


def perceptron(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights[:-1]:
        x = torch.relu(x @ weight)
    return x @ weights[-1]


def rounded_perceptron(rounding: Rounding, x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights[:-1]:
        x = torch.relu(rounding(x) @ rounding(weight))
    return rounding(x) @ rounding(weights[-1])


def _draw(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape) for shape in shapes)


def _deep(layers: int) -> tuple[Tensor, ...]:
    return (torch.randn(64, 128), *(torch.randn(128, 128) * math.sqrt(2 / 128) for _ in range(layers)))


#: Problem, inputs, and how a kernel of its own solves it with rounded operands.
PROBLEMS: dict[str, tuple[Function, Callable[[], tuple[Tensor, ...]], Callable[..., Tensor]]] = {
    "product": (torch.matmul, lambda: _draw((64, 256), (256, 96)), lambda r, a, b: r(a) @ r(b)),
    "small product": (torch.matmul, lambda: _draw((40, 24), (24, 56)), lambda r, a, b: r(a) @ r(b)),
    "long product": (torch.matmul, lambda: _draw((16, 4096), (4096, 16)), lambda r, a, b: r(a) @ r(b)),
    "single row": (torch.matmul, lambda: _draw((1, 512), (512, 200)), lambda r, a, b: r(a) @ r(b)),
    "single number": (torch.matmul, lambda: _draw((1, 512), (512, 1)), lambda r, a, b: r(a) @ r(b)),
    "attention": (attention, lambda: _draw(*[(2, 128, 32)] * 3), attention_by_blocks),
    "attention to few": (
        attention,
        lambda: (8 * torch.randn(2, 128, 32), *_draw(*[(2, 128, 32)] * 2)),
        attention_by_blocks,
    ),
    "3 layers": (perceptron, lambda: _deep(3), rounded_perceptron),
    "12 layers": (perceptron, lambda: _deep(12), rounded_perceptron),
    "convolution": (
        functional.conv2d,
        lambda: _draw((2, 16, 20, 20), (24, 16, 3, 3)),
        lambda r, x, w: functional.conv2d(r(x), r(w)),
    ),
    "residual": (
        lambda x, w: x + 0.3 * (x @ w),
        lambda: _draw((64, 128), (128, 128)),
        lambda r, x, w: x + 0.3 * (r(x) @ r(w)),
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_honest_rounding_is_named(name: str, way: str) -> None:
    function, draw, kernel = PROBLEMS[name]
    inputs = draw()
    result = judge(function, inputs, kernel(WAYS[way], *inputs))
    assert result.outcome is Outcome.CORRECT, result.detail
    assert result.max_error <= result.tolerance
    assert result.precision == NAMES[way] or name == "single number", "one number may be right by chance"


@pytest.mark.parametrize("name", PROBLEMS)
def test_full_precision_is_no_downgrade(name: str) -> None:
    function, draw, kernel = PROBLEMS[name]
    inputs = draw()
    assert judge(function, inputs, kernel(lambda tensor: tensor, *inputs)).precision is Precision.REFERENCE


WITH_PRODUCTS = [
    "causal_attention",
    "cosine_scores",
    "depthwise_conv",
    "gated_unit",
    "linear_gelu_scale",
    "lstm_cell",
    "matmul",
    "mixer_block",
    "mlp",
    "residual_conv_block",
    "squeeze_excitation",
    "transformer_block",
    "two_headed_network",
]


@pytest.mark.parametrize("name", WITH_PRODUCTS)
def test_every_class_of_a_builtin_problem_is_named(name: str) -> None:
    made = Reference(load_problem(builtin_files()[name]).small(), "cpu", train=False)
    made.build(1)
    expected = made.expected(made.inputs(1))
    assert expected.rerun is not None
    for precision, ways in ROUNDINGS.items():
        for rounding in ways:
            found = compare(expected, expected.rerun(rounding) or [])
            assert found.precision is (Precision.BF16 if precision is Precision.BF16 else Precision.TF32)


def test_one_operand_truncated_and_the_other_rounded_is_tf32() -> None:
    a, b = _draw((64, 256), (256, 96))
    assert judge(torch.matmul, (a, b), TRUNCATED(a) @ NEAREST(b)).precision is Precision.TF32


def test_a_result_that_is_stored_coarsely_too_is_of_its_class() -> None:
    a, b = _draw((64, 256), (256, 96))
    assert judge(torch.matmul, (a, b), BRAIN(BRAIN(a) @ BRAIN(b))).precision is Precision.BF16
    assert judge(torch.matmul, (a, b), HALF(HALF(a) @ HALF(b))).precision is Precision.TF32


@pytest.mark.parametrize(("inner", "dtype"), [(256, torch.bfloat16), (4096, torch.float16), (4096, torch.bfloat16)])
def test_long_sums_in_half_precision_are_wrong(inner: int, dtype: torch.dtype) -> None:
    a, b = _draw((64, inner), (inner, 96))
    assert judge(torch.matmul, (a, b), product_in_steps(a, b, 16, dtype)).outcome is Outcome.WRONG_VALUE


def test_errors_of_fp16_that_underflow_are_told_from_those_of_tf32() -> None:
    a, b = _draw((64, 256), (256, 96))
    a *= 2.0**-20
    assert judge(torch.matmul, (a, b), NEAREST(a) @ NEAREST(b)).precision is Precision.TF32
    assert judge(torch.matmul, (a, b), HALF(a) @ HALF(b)).precision is Precision.FP16
    expected = expect(torch.matmul, a, b)
    assert can_tell(expected, Precision.TF32, Precision.FP16)
    assert not can_tell(expect(torch.matmul, a * 2.0**20, b), Precision.TF32, Precision.FP16)


def _tail(factor: float, place: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
    def plant(y: Tensor) -> Tensor:
        y = y.clone()
        y[place] *= factor
        return y

    return plant


#: Errors within the size of bfloat16's, which no rounding of operands makes.
IMPOSTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "the mean": lambda y: torch.full_like(y, float(y.mean())),
    "a factor": lambda y: y * 1.002,
    "a small factor": lambda y: y * 1.0006,
    "a shift": lambda y: y + 0.002 * y.std(),
    "noise": lambda y: y + 0.002 * y.std() * torch.randn_like(y),
    "a coarse output": BRAIN,
    "the last columns": _tail(1.005, (slice(None), slice(-3, None))),
    "the last rows": _tail(1.005, (slice(-8, None),)),
    "every third row": _tail(1.004, (slice(None, None, 3),)),
    "small values": lambda y: torch.where(y.abs() < 0.01 * y.std(), 0.0, y),
    "a tenth of the elements": lambda y: torch.where(torch.rand_like(y) < 0.1, y * 1.01, y),
}


@pytest.mark.parametrize("impostor", IMPOSTORS.values(), ids=IMPOSTORS)
@pytest.mark.parametrize("name", ["product", "attention"])
def test_an_error_of_another_kind_is_wrong(name: str, impostor: Callable[[Tensor], Tensor]) -> None:
    function, draw, _ = PROBLEMS[name]
    inputs = draw()
    assert judge(function, inputs, impostor(function(*inputs))).outcome is Outcome.WRONG_VALUE


@pytest.mark.parametrize("rounding", [BRAIN, NEAREST, lambda tensor: tensor], ids=["bf16", "tf32", "fp32"])
@pytest.mark.parametrize("inner", [256, 4096])
def test_a_term_that_is_missing_is_wrong_in_every_class(inner: int, rounding: Rounding) -> None:
    a, b = _draw((64, inner), (inner, 96))
    assert judge(torch.matmul, (a, b), rounding(a[:, :-1]) @ rounding(b[:-1])).outcome is Outcome.WRONG_VALUE


@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_a_key_that_is_missing_is_wrong(gain: float) -> None:
    query, key, value = _draw(*[(2, 128, 32)] * 3)
    output = attention_by_blocks(BRAIN, gain * query, key[..., :-1, :], value[..., :-1, :])
    assert judge(attention, (gain * query, key, value), output).outcome is Outcome.WRONG_VALUE


ELEMENTWISE: dict[str, Function] = {
    "softmax": lambda x: x.softmax(-1),
    "gelu": functional.gelu,
    "layer norm": lambda x: functional.layer_norm(x, (256,)),
    "sum": lambda x: x.sum(-1),
}


@pytest.mark.parametrize("rounding", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("function", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_a_problem_without_products_has_no_lower_class(function: Function, rounding: Rounding) -> None:
    x = torch.randn(64, 256)
    assert judge(function, (x,), function(rounding(x))).outcome is Outcome.WRONG_VALUE


def test_a_rough_approximation_around_a_product_is_wrong() -> None:
    a, b = _draw((64, 256), (256, 96))
    a /= 16

    def exactly(a: Tensor, b: Tensor) -> Tensor:
        return functional.gelu(a @ b)

    assert judge(exactly, (a, b), functional.gelu(BRAIN(a) @ BRAIN(b))).precision is Precision.BF16
    roughly = functional.gelu(a @ b, approximate="tanh")
    assert judge(exactly, (a, b), roughly).outcome is Outcome.WRONG_VALUE


def test_only_accepted_classes_count() -> None:
    a, b = _draw((64, 256), (256, 96))
    expected = expect(torch.matmul, a, b)
    output = [BRAIN(a) @ BRAIN(b)]
    for accepts in ((), (Precision.TF32,), (Precision.TF32, Precision.FP16)):
        assert compare(replace(expected, accepts=accepts), output).outcome is Outcome.WRONG_VALUE
    assert compare(replace(expected, rerun=None), output).outcome is Outcome.WRONG_VALUE
    assert compare(replace(expected, rerun=lambda _: None), output).outcome is Outcome.WRONG_VALUE


def test_outputs_that_are_not_fp32_have_no_lower_class() -> None:
    a, b = _draw((64, 256), (256, 96))
    expected = expect(lambda a, b: (a @ b).half(), a, b)
    coarse = product_in_steps(a, b, 256, torch.bfloat16).half()
    assert compare(expected, [coarse]).outcome is Outcome.WRONG_VALUE


def test_every_output_must_be_explained_by_one_class() -> None:
    a, b = _draw((64, 256), (256, 96))

    def both(a: Tensor, b: Tensor) -> list[Tensor]:
        return [a @ b, (a @ b).softmax(-1), a.sum(-1)]

    def rerun(rounding: Rounding) -> list[Tensor]:
        with rounded(rounding):
            return both(a, b)

    exact: list[Tensor | None] = [*both(a.double(), b.double())]
    expected = Expected({}, both(a, b), exact, 256, rerun, tuple(ROUNDINGS))
    coarse = both(BRAIN(a), BRAIN(b))
    plain = both(a, b)
    assert compare(expected, [coarse[0], coarse[1], plain[2]]).precision is Precision.BF16
    assert compare(expected, [plain[0], coarse[1], plain[2]]).precision is Precision.BF16
    assert compare(expected, [NEAREST(a) @ NEAREST(b), coarse[1], plain[2]]).precision is Precision.BF16
    wrong = compare(expected, [coarse[0], coarse[1], coarse[2]])
    assert wrong.outcome is Outcome.WRONG_VALUE, "a sum has no operands to round"
    assert wrong.pattern is not None


def test_infinities_of_a_class_are_no_excuse() -> None:
    a, b = _draw((64, 256), (256, 96))
    a *= 1e5
    output = HALF(a).nan_to_num(0, 0, 0) @ HALF(b)
    assert judge(torch.matmul, (a, b), output).outcome is Outcome.WRONG_VALUE


def test_chunks_show_what_the_whole_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _draw((64, 256), (256, 96))
    exact = a.double() @ b.double()
    scale = row_scale(exact)
    sides = (exact, BRAIN(a) @ BRAIN(b), NEAREST(a) @ NEAREST(b))
    biases = [TRUNCATED(a) @ TRUNCATED(b) - MIDDLE(a) @ MIDDLE(b)]
    whole = overlay(*sides, biases, scale), unevenness(*sides, scale)
    monkeypatch.setattr(measure, "CHUNK", 500)
    assert overlay(*sides, biases, scale) == pytest.approx(whole[0])
    assert unevenness(*sides, scale) == pytest.approx(whole[1])


def test_errors_are_laid_over_each_other_without_their_biases() -> None:
    exact = torch.randn(128, 96, dtype=torch.float64)
    noise, own, bias = (torch.randn_like(exact) for _ in range(3))
    scale = row_scale(exact)
    version = exact + 1e-3 * noise + 0.01 * exact
    found = overlay(exact, exact + 2e-3 * noise + 0.02 * exact, version, [], scale)
    assert found.alike > 0.999
    assert found.larger == pytest.approx(2.0, rel=0.01)
    assert found.noise == pytest.approx(1e-3, rel=0.1)
    assert abs(overlay(exact, exact + 1e-3 * own, version, [], scale).alike) < 0.05
    partly = exact + 1e-3 * noise + 0.01 * exact + 0.8e-3 * bias
    assert overlay(exact, partly, version, [1e-3 * bias], scale).alike > 0.999
    assert overlay(exact, partly, version, [], scale).alike < 0.9
    assert overlay(exact, exact * 1.01, version, [], scale).alike < 0.05


def test_the_bands_find_what_is_uneven() -> None:
    exact = torch.randn(128, 96, dtype=torch.float64)
    version = exact + 1e-3 * torch.randn_like(exact)
    even = exact + 1e-3 * torch.randn_like(exact)
    assert unevenness(exact, even, version, row_scale(exact)) < 1.5
    even[96:100] += 0.05
    assert unevenness(exact, even, version, row_scale(exact)) > 4


def test_probes_ask_a_class_for_no_more_than_it_can_do() -> None:
    a, b = _draw((64, 256), (256, 96))
    usual = expect(torch.matmul, a, b)
    overflowing = expect(torch.matmul, a * 1e5, b * 1e5)
    assert is_as_exact(replace(overflowing, accepts=()), replace(usual, accepts=()))
    assert is_as_exact(replace(overflowing, accepts=(Precision.TF32,)), usual)
    assert not is_as_exact(overflowing, usual), "fp16 overflows there"


@pytest.mark.parametrize(("causal", "masked"), [(False, ""), (True, ""), (False, "bool"), (False, "float")])
def test_attention_taken_apart_is_attention(causal: bool, masked: str) -> None:
    query, key, value = _draw((2, 4, 9, 8), (2, 2, 11, 8), (2, 2, 11, 8))
    mask = None if not masked else torch.rand(2, 1, 9, 11) > 0.3
    mask = mask.float() if mask is not None and masked == "float" else mask
    options: dict[str, Any] = {"attn_mask": mask, "is_causal": causal, "scale": 0.4, "enable_gqa": True}
    plain = functional.scaled_dot_product_attention(query, key, value, **options)
    with rounded(lambda tensor: tensor):
        apart = functional.scaled_dot_product_attention(query, key, value, **options)
    assert torch.allclose(plain, apart, atol=1e-6)


def test_a_single_head_may_come_alone() -> None:
    query, key, value = _draw((9, 8), (11, 8), (11, 8))
    mask = torch.rand(9, 11)
    plain = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    with rounded(lambda tensor: tensor):
        apart = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        with pytest.raises(NotImplementedError):
            functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    assert torch.allclose(plain, apart, atol=1e-6)


def test_layers_that_hide_their_products_are_rounded_too() -> None:
    layers: dict[str, tuple[torch.nn.Module, tuple[int, ...]]] = {
        "linear": (torch.nn.Linear(32, 32), (4, 32)),
        "recurrent": (torch.nn.LSTM(32, 32), (3, 2, 32)),
        "transformer": (torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval(), (2, 5, 32)),
        "convolution": (torch.nn.Conv1d(8, 8, 3), (2, 8, 16)),
    }
    for name, (layer, shape) in layers.items():
        x = torch.randn(shape)
        with torch.no_grad():
            plain = layer(x)
            with rounded(BRAIN):
                coarse = layer(x)
        plain, coarse = (side[0] if isinstance(side, tuple) else side for side in (plain, coarse))
        assert 1e-5 < float((coarse - plain).norm() / plain.norm()) < 0.05, name
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.cudnn.enabled
    assert torch.backends.mkldnn.enabled


@pytest.mark.slow
def test_every_step_of_a_recurrent_layer_rounds_its_operands() -> None:
    layer = torch.nn.LSTM(64, 64)
    x = torch.randn(40, 4, 64)

    def steps(rounding: Rounding) -> Tensor:
        hidden = cell = torch.zeros(4, 64)
        outputs = []
        for each in x:
            gates = rounding(each) @ rounding(layer.weight_ih_l0).T + rounding(hidden) @ rounding(layer.weight_hh_l0).T
            i, f, g, o = (gates + layer.bias_ih_l0 + layer.bias_hh_l0).chunk(4, dim=1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs)

    with torch.no_grad():
        plain = layer(x)[0]
        exact = copy.deepcopy(layer).double()(x.double())[0]

        def rerun(rounding: Rounding) -> list[Tensor]:
            with rounded(rounding):
                return [layer(x)[0]]

        expected = Expected({}, [plain], [exact], 64, rerun, tuple(ROUNDINGS))
        for way, name in NAMES.items():
            assert compare(expected, [steps(WAYS[way])]).precision == name


def test_rounding_keeps_what_is_not_finite() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 3.4e38])
    for rounding in (NEAREST, MIDDLE, TRUNCATED):
        assert torch.equal(rounding(odd)[:5].nan_to_num(1), odd[:5].nan_to_num(1))
    one = torch.tensor([1.0 + 2**-11, 1.0 + 3 * 2**-11, 1 + 2**-10, -1.0 - 2**-11 - 2**-20])
    assert NEAREST(one).tolist() == [1.0, 1 + 2**-9, 1 + 2**-10, -1 - 2**-10]
    assert TRUNCATED(one).tolist() == [1.0, 1 + 2**-10, 1 + 2**-10, -1.0]
    assert MIDDLE(one).tolist() == [1 + 2**-11, 1 + 2**-10 + 2**-11, 1 + 2**-10 + 2**-11, -1 - 2**-11]


def test_times_are_asked_for_as_a_user_would_and_flags_are_put_back() -> None:
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    with products_in(Precision.TF32, "cpu"):
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (True, True)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    a, b = _draw((4, 8), (8, 4))
    for precision, dtype in {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}.items():
        with products_in(precision, "cpu"):
            assert (a @ b).dtype is dtype
    with products_in(Precision.REFERENCE, "cpu"):
        assert (a @ b).dtype is torch.float32


def test_the_largest_value_on_the_way_is_seen() -> None:
    assert largest_value(lambda x: (x * 100).sum() * 0, torch.tensor([1.0, -3.0])) == 300.0
    assert largest_value(lambda x: x / 0, torch.tensor([1.0])) == math.inf
    assert largest_value(lambda x: x + 1, torch.tensor([1])) == 0.0
