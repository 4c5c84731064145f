"""Arithmetic that Triton's interpreter lacks or gets wrong: bfloat16, float8, libdevice, `maximum` of NaN.

The interpreter keeps a bfloat16 as its bits in a uint16 and adds those bits as integers. Here it is kept as a
float32 that holds a bfloat16 value: loads widen, stores narrow, and every result is rounded to the nearest,
ties to even. A float8 stays as its bits; conversions are right, and arithmetic on the bits is refused.
"""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.language import extra
from triton.language.extra import libdevice as stubs
from triton.runtime import interpreter

from workers.cpu import libdevice

Array = NDArray[Any]
Handle = interpreter.TensorHandle

_BITS = np.dtype(np.uint16)
_NAN_BITS = np.uint32(0x7FC0)
_FLOAT8 = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
_ATOMIC = interpreter._ir.ATOMIC_OP
_NEAREST = interpreter._ir.ROUNDING_MODE.RTNE


def narrow(values: Array) -> Array:
    """Round to bfloat16 and return the bits as uint16."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), _NAN_BITS, rounded).astype(_BITS)


def widen(bits: Array) -> Array:
    """Return the float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def install() -> None:
    """Give the interpreter this arithmetic, and kernels libdevice in both places where they find it."""
    _hold_bfloat16_as_float32()
    interpreter.interpreter_builder.__class__ = Builder
    scope = interpreter._LangPatchScope()
    for module in (extra.cuda, extra.cuda.libdevice):
        interpreter._patch_builtin(module, interpreter.interpreter_builder, scope)
    # A compiled kernel gets its device's functions for these stubs; an interpreted one would call the stubs.
    for name, function in vars(extra.cuda.libdevice).items():
        if callable(function) and hasattr(stubs, name):
            setattr(stubs, name, function)


class Builder(interpreter.InterpreterBuilder):  # type: ignore[misc]  # triton has no types
    """The interpreter's operations, where they must differ."""

    def get_bf16(self, value: float) -> Any:
        """Make a constant."""
        return Handle(np.array([value], np.float32), tl.bfloat16)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *hints: Any, **named: Any) -> Any:
        """Load; memory holds a bfloat16 as bits."""
        if not _is_bf16(ptrs.get_element_ty()):
            return super().create_masked_load(ptrs, mask, other, *hints, **named)
        fill = np.zeros(ptrs.data.shape, _BITS) if other is None else narrow(other.data)
        return Handle(widen(_load(ptrs.data, mask.data, fill)), tl.bfloat16)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *hints: Any) -> Any:
        """Store; memory holds a bfloat16 as bits."""
        if _is_bf16(ptrs.get_element_ty()):
            value = _bits_of(value)
        return super().create_masked_store(ptrs, value, mask, *hints)

    def create_atomic_rmw(self, operation: Any, ptr: Any, val: Any, mask: Any, *order: Any) -> Any:
        """Read, modify and write; one element after the other for bfloat16."""
        if not _is_bf16(ptr.get_element_ty()):
            return super().create_atomic_rmw(operation, ptr, val, mask, *order)
        if operation not in {_ATOMIC.FADD, _ATOMIC.XCHG}:
            raise NotImplementedError(f"{operation} of bfloat16 is not available on the CPU device")
        old = np.zeros(ptr.data.shape, np.float32)
        for at in np.ndindex(old.shape):
            where, wanted, new = ptr.data[at].reshape(1), mask.data[at].reshape(1), val.data[at]
            old[at] = widen(_load(where, wanted, np.zeros(1, _BITS)))[0]
            result = old[at] + new if operation == _ATOMIC.FADD else new
            interpreter._interpreter.store(where, narrow(result.reshape(1)), wanted)
        return Handle(old, tl.bfloat16)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, *order: Any) -> Any:
        """Compare and swap, by the bits for bfloat16."""
        if not _is_bf16(ptr.get_element_ty()):
            return super().create_atomic_cas(ptr, cmp, val, *order)
        old = super().create_atomic_cas(ptr, _bits_of(cmp), _bits_of(val), *order)
        return Handle(widen(old.data), tl.bfloat16)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        """Convert, to the nearest."""
        return Handle(_values_of(src).astype(interpreter._get_np_dtype(dst_type)), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        """Convert from or to float8, or towards zero."""
        target = dst_type.scalar
        if target.is_fp8():
            if rounding_mode not in {None, _NEAREST}:
                raise NotImplementedError("float8 is rounded to the nearest only on the CPU device")
            return Handle(_to_float8(_values_of(src), target), target)
        if src.dtype.scalar.is_fp8() or rounding_mode == _NEAREST:
            return self.cast_impl(src, dst_type)
        if _is_bf16(target):
            bits = _values_of(src).astype(np.float32).view(np.uint32)
            return Handle((bits & np.uint32(0xFFFF0000)).view(np.float32), target)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def create_bitcast(self, src: Any, dst_type: Any) -> Any:
        """Take the same bits as another type."""
        data = narrow(src.data) if _is_bf16(src.dtype) else src.data
        if _is_bf16(dst_type):
            return Handle(widen(data.view(_BITS)), dst_type.scalar)
        return Handle(data.view(interpreter._get_np_dtype(dst_type)), dst_type.scalar)

    def create_fabs(self, arg: Any) -> Any:
        """Drop the sign."""
        return self.unary_op(arg, np.abs)

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        """Apply `op`, except to the bits of float8."""
        if lhs.dtype.scalar.is_fp8():
            raise NotImplementedError("float8 has no arithmetic on the CPU device: convert it first")
        return super().binary_op(lhs, rhs, op)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        """Return the larger value, or the one that is not NaN."""
        return self.binary_op(lhs, rhs, np.fmax)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        """Return the smaller value, or the one that is not NaN."""
        return self.binary_op(lhs, rhs, np.fmin)

    def create_erf(self, arg: Any) -> Any:
        """Return the error function; the interpreter calls `math.erf` for each element."""
        return Handle(libdevice.call("erf", arg.data), arg.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, *precision: Any) -> Any:
        """Multiply matrices in float32 at least; NumPy has a fast product for no smaller type."""
        if not a.dtype.is_floating():
            return super().create_dot(a, b, d, *precision)
        wide = np.promote_types(np.float32, d.data.dtype)
        product = np.matmul(_values_of(a).astype(wide), _values_of(b).astype(wide))
        return Handle((product + d.data).astype(d.data.dtype), d.dtype.scalar)

    def create_extern_elementwise(self, _library: str, _path: str, symbol: str, *call: Any) -> Any:
        """Call a function of libdevice."""
        args, ret_type, _pure = call
        value = libdevice.call(symbol, *[arg.data for arg in args])
        return Handle(value.astype(interpreter._get_np_dtype(ret_type)), ret_type.scalar)


def _hold_bfloat16_as_float32() -> None:
    # The interpreter would build its table of types at each call; one table also makes kernels faster.
    names = [*tl.dtype.SINT_TYPES, *tl.dtype.UINT_TYPES, *tl.dtype.FP_TYPES]
    types = {name: interpreter._get_np_dtype(tl.dtype(name)) for name in names} | {"bf16": np.dtype(np.float32)}
    pointer = np.dtype(np.uint64)

    def numpy_type(dtype: Any) -> Any:
        scalar = dtype.scalar
        return pointer if isinstance(scalar, tl.pointer_type) else types[scalar.name]

    check = Handle.__post_init__

    def settle(self: Any) -> None:
        if not _is_bf16(self.dtype):
            check(self)
        elif self.data.dtype.kind == "f":  # the handle of a comparison has boolean data and the operands' type
            self.data = widen(narrow(self.data))

    interpreter._get_np_dtype = numpy_type
    Handle.__post_init__ = settle


def _is_bf16(dtype: Any) -> bool:
    return bool(dtype.scalar.name == "bf16")


def _load(pointers: Array, mask: Array, fill: Array) -> Array:
    loaded: Array = interpreter._interpreter.load(pointers, mask, fill, _BITS)
    return loaded


def _bits_of(handle: Any) -> Any:
    return Handle(narrow(handle.data), tl.uint16)


def _values_of(handle: Any) -> Array:
    """Return numbers that NumPy can convert: all but float8 are so already."""
    data: Array = handle.data
    name = handle.dtype.scalar.name
    if not name.startswith("fp8") or data.dtype != np.uint8:
        return data
    with torch._C._DisableTorchDispatch():  # the interpreter's business, and not a kernel's
        values: Array = torch.from_numpy(np.array(data)).view(_float8(name)).to(torch.float32).numpy()
    return values


def _to_float8(values: Array, dtype: Any) -> Array:
    """Round to the nearest; what is too large becomes the largest number, as on a GPU."""
    float8 = _float8(dtype.name)
    limit = torch.finfo(float8).max
    clipped = np.clip(values.astype(np.float32), -limit, limit)
    with torch._C._DisableTorchDispatch():
        bits: Array = torch.from_numpy(clipped).to(float8).view(torch.uint8).numpy()
    return bits


def _float8(name: str) -> torch.dtype:
    if name not in _FLOAT8:
        raise NotImplementedError(f"{name} is not available on the CPU device")
    return _FLOAT8[name]
