"""What arithmetic in kernels must give on a CPU device; run by `tests.unit.interpreted`."""

import warnings
from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.unit.interpreted import assert_close, raises
from workers.cpu import libdevice as host_libdevice
from workers.cpu import numerics


@triton.jit
def convert_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, x.to(y_ptr.dtype.element_ty), mask=offsets < n)


def converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=dtype)
    convert_kernel[(1,)](x, y, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    return y


@triton.jit
def bf16_kernel(x_ptr, y_ptr, out_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):  # noqa: C901 - a list
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=1.0)
    if OP == "add":
        z = x + y
    elif OP == "mul":
        z = x * y
    elif OP == "neg":
        z = -x
    elif OP == "abs":
        z = tl.abs(x)
    elif OP == "where":
        z = tl.where(x > y, x, y)
    elif OP == "maximum":
        z = tl.maximum(x, y)
    elif OP == "sqrt":
        z = tl.sqrt(tl.abs(x).to(tl.float32)).to(tl.bfloat16)
    elif OP == "chain":
        z = (x + y) * y - x
    elif OP == "constant":
        z = x * tl.full((BLOCK,), 1.5, tl.bfloat16) + tl.zeros((BLOCK,), tl.bfloat16)
    elif OP == "bitcast":
        z = (x.to(tl.int16, bitcast=True) ^ -32768).to(tl.bfloat16, bitcast=True)
    elif OP == "int":
        z = x.to(tl.int32).to(tl.bfloat16)
    else:
        z = x.to(tl.float16).to(tl.bfloat16)
    tl.store(out_ptr + offsets, z, mask=mask)


BF16_OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "where": torch.maximum,
    "maximum": torch.maximum,
    "sqrt": lambda x, y: x.abs().sqrt(),
    "chain": lambda x, y: (x + y) * y - x,
    "constant": lambda x, y: x * 1.5,
    "bitcast": lambda x, y: -x,
    "int": lambda x, y: x.int().bfloat16(),
    "half": lambda x, y: x.half().bfloat16(),
}


def case_bfloat16_arithmetic_is_that_of_torch() -> None:
    x, y = (30 * torch.randn(2, 1000)).bfloat16()
    for operation, expected in BF16_OPERATIONS.items():
        out = torch.zeros(1000, dtype=torch.bfloat16, device="cuda")
        bf16_kernel[(1,)](x, y, out, 1000, OP=operation, BLOCK=1024)
        assert torch.equal(out, expected(x, y)), operation


def case_bfloat16_passes_through_unchanged() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    out = converted(every, torch.bfloat16)
    assert torch.equal(out.isnan(), every.isnan())
    assert torch.equal(out[~out.isnan()].view(torch.int16), every[~every.isnan()].view(torch.int16))


def case_bfloat16_is_rounded_as_torch_rounds() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 100_000, dtype=np.uint32)
    values = bits.view(np.float32)
    expected = torch.from_numpy(values).bfloat16()
    numbers = ~np.isnan(values)
    assert np.array_equal(numerics.narrow(values)[numbers], expected.view(torch.uint16).numpy()[numbers])
    assert np.isnan(numerics.widen(numerics.narrow(values[~numbers]))).all()


@triton.jit
def bf16_atomic_kernel(x_ptr, sum_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.atomic_add(sum_ptr + offsets % 2, x, mask=offsets < n)


def case_bfloat16_atomics_add() -> None:
    sums = torch.zeros(2, dtype=torch.bfloat16)
    bf16_atomic_kernel[(1,)](torch.arange(10).bfloat16(), sums, 10, BLOCK=16)
    assert sums.tolist() == [20.0, 25.0]


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
    i, j, k = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK, tl.arange(0, BLOCK)
    rows, columns = i + tl.arange(0, BLOCK), j + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(tl.cdiv(K, BLOCK)):
        inner = start * BLOCK + k
        a = tl.load(
            a_ptr + rows[:, None] * K + inner[None, :], mask=(rows < M)[:, None] & (inner < K)[None, :], other=0
        )
        b = tl.load(
            b_ptr + inner[:, None] * N + columns[None, :],
            mask=(inner < K)[:, None] & (columns < N)[None, :],
            other=0,
        )
        total = tl.dot(a, b, total)
    c_mask = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=c_mask)


def case_dot_products_of_every_float() -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)):
        a, b = torch.randn(40, 24).to(dtype), torch.randn(24, 33).to(dtype)
        c = torch.empty(40, 33, dtype=dtype, device="cuda")
        matmul_kernel[(3, 3)](a, b, c, 40, 33, 24, BLOCK=16)
        assert_close(c.float(), a.float() @ b.float(), tolerance)
    a, b = (torch.randint(-9, 9, (16, 16), dtype=torch.int8) for _ in range(2))
    c = torch.empty(16, 16, dtype=torch.int32)
    integer_dot_kernel[(1,)](a, b, c)
    assert torch.equal(c, a.int() @ b.int())


@triton.jit
def integer_dot_kernel(a_ptr, b_ptr, c_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(c_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), out_dtype=tl.int32))


@triton.jit
def block_pointer_kernel(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * BLOCK, 0)
    x = tl.make_block_ptr(x_ptr, (rows, columns), (columns, 1), at, (BLOCK, BLOCK), (1, 0))
    y = tl.make_block_ptr(y_ptr, (rows, columns), (columns, 1), at, (BLOCK, BLOCK), (1, 0))
    for _ in range(tl.cdiv(columns, BLOCK)):
        tl.store(y, tl.load(x, boundary_check=(0, 1), padding_option="zero") * 2, boundary_check=(0, 1))
        x, y = tl.advance(x, (0, BLOCK)), tl.advance(y, (0, BLOCK))


@triton.jit
def device_descriptor_kernel(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    y = tl.make_tensor_descriptor(y_ptr, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    at = tl.program_id(0) * BLOCK
    for start in range(0, columns, BLOCK):
        y.store([at, start], x.load([at, start]) * 2)


@triton.jit
def host_descriptor_kernel(x, y, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    for start in range(0, columns, BLOCK):
        y.store([at, start], x.load([at, start]) * 2)


def case_block_pointers_and_descriptors() -> None:
    warnings.filterwarnings("ignore", message="tl.make_block_ptr is deprecated")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(40, 24).to(dtype)
        for kernel in (block_pointer_kernel, device_descriptor_kernel):
            y = torch.empty_like(x)
            kernel[(3,)](x, y, 40, 24, BLOCK=16)
            assert torch.equal(y, 2 * x), (kernel.__name__, dtype)
        y = torch.empty_like(x)
        host_descriptor_kernel[(3,)](
            TensorDescriptor.from_tensor(x, [16, 16]), TensorDescriptor.from_tensor(y, [16, 16]), 24, BLOCK=16
        )
        assert torch.equal(y, 2 * x), dtype


@triton.jit
def add_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets) + tl.load(x_ptr + offsets))


def case_float8_converts_and_refuses_arithmetic() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        limit = torch.finfo(dtype).max
        x = torch.cat([10 * torch.randn(500), torch.tensor([1.99, -0.0, limit, 1e9, -1e9])])
        narrow = converted(x, dtype)
        assert torch.equal(narrow.float(), x.clamp(-limit, limit).to(dtype).float())
        for wide in (torch.float32, torch.float16, torch.bfloat16):
            assert torch.equal(converted(narrow, wide), narrow.to(wide))
        assert "float8 has no arithmetic" in raises(Exception, lambda x=narrow: add_kernel[(1,)](x, x, BLOCK=16))


@triton.jit
def towards_zero_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, x.to(tl.bfloat16, fp_downcast_rounding="rtz"))


def case_rounding_towards_zero() -> None:
    x, y = torch.tensor([1.999, -1.999, 1.0, 3.1e-3]), torch.empty(4, dtype=torch.bfloat16)
    towards_zero_kernel[(1,)](x, y, BLOCK=4)
    assert torch.equal(y, (x.view(torch.int32) & -65536).view(torch.float32).bfloat16())


@triton.jit
def wrap_kernel(x_ptr, y_ptr, z_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, x * 1664525 + 1013904223)
    tl.store(z_ptr + offsets, tl.maximum(x.to(tl.float32) + float("nan"), 0.0))


def case_integers_wrap_and_maximum_ignores_nan_as_on_a_gpu() -> None:
    x = torch.tensor([0, 2**31 - 1, -(2**31), 12345], dtype=torch.int32)
    y, z = torch.empty_like(x), torch.full((4,), -1.0)
    wrap_kernel[(1,)](x, y, z, BLOCK=4)
    assert torch.equal(y, x * 1664525 + 1013904223)
    assert z.tolist() == [0.0] * 4


@triton.jit
def libdevice_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=1.0)
    y = libdevice.tanh(x) + tl.extra.cuda.libdevice.erf(x) + libdevice.fast_expf(x)
    y += libdevice.pow(tl.abs(x), 2.5) + libdevice.pow(x, 3) + libdevice.rsqrt(libdevice.fma(x, x, 1.0))
    tl.store(y_ptr + offsets, y + libdevice.float2int_rn(x) + libdevice.isnan(x), mask=mask)


@triton.jit
def missing_kernel(x_ptr):
    tl.store(x_ptr, libdevice.div_rz(tl.load(x_ptr), 3.0))


def case_kernels_call_libdevice() -> None:
    x, y = torch.randn(100), torch.empty(100)
    libdevice_kernel[(1,)](x, y, 100, BLOCK=128)
    expected = x.tanh() + x.erf() + x.exp() + x.abs() ** 2.5 + x**3 + torch.rsqrt(x * x + 1) + x.round()
    assert_close(y, expected, 1e-5)
    message = raises(Exception, lambda: missing_kernel[(1,)](torch.ones(1)))
    assert "libdevice's __nv_fdiv_rz is not available on the CPU device" in message


def case_libdevice_is_that_of_torch() -> None:
    x = torch.linspace(-0.95, 0.95, 40)
    big = 1 + 9 * x.abs()
    pairs = {
        **{name: (x, getattr(torch, name)) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")},
        **{name: (x, getattr(torch, name)) for name in ("tanh", "asinh", "atanh", "exp", "exp2", "expm1", "log1p")},
        **{name: (x, getattr(torch, name)) for name in ("floor", "ceil", "trunc", "erf", "erfc", "erfinv", "signbit")},
        **{name: (big, getattr(torch, name)) for name in ("sqrt", "rsqrt", "log", "log2", "log10", "acosh", "lgamma")},
        "fabs": (x, torch.abs),
        "cbrt": (x, lambda v: v.sign() * v.abs() ** (1 / 3)),
        "normcdf": (x, torch.special.ndtr),
        "normcdfinv": (x.abs(), torch.special.ndtri),
        "erfcinv": (big / 10, lambda v: torch.erfinv(1 - v)),
        "exp10": (x, lambda v: 10**v),
        "sinpi": (x, lambda v: torch.sin(torch.pi * v)),
        "cyl_bessel_i0": (x, torch.special.i0),
        "rint": (9 * x, torch.round),
        "saturate": (2 * x, lambda v: v.clamp(0, 1)),
        "frcp_rn": (big, torch.reciprocal),
    }
    for name, (argument, expected) in pairs.items():
        for suffix in ("", "f"):
            result = torch.from_numpy(host_libdevice.call(f"__nv_{name}{suffix}", argument.numpy()))
            assert_close(result, expected(argument), 1e-5)
    halves = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 0.3], np.float32)
    assert host_libdevice.call("__nv_roundf", halves).tolist() == [1, 2, 3, -1, -3, 0]
    assert host_libdevice.call("__nv_rintf", halves).tolist() == [0, 2, 2, 0, -2, 0]
    assert host_libdevice.call("__nv_clz", np.array([1, 0, -1], np.int32)).tolist() == [31, 32, 0]
    assert host_libdevice.call("__nv_ffs", np.array([0, 8, 3], np.int32)).tolist() == [0, 4, 1]
    assert host_libdevice.call("__nv_popc", np.array([7, 0], np.int32)).tolist() == [3, 0]
    assert host_libdevice.call("__nv_float_as_int", np.ones(1, np.float32)).tolist() == [0x3F800000]
