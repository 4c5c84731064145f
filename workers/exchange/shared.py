"""How values cross between judge and candidate without pickle.

A nested value (lists, tuples, dicts, scalars, tensors) becomes a JSON skeleton and a list of tensors, which lie side by
side in a `workers.exchange.segment.Segment`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Every tensor begins at a multiple of this, bytes.
ALIGN = 256
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
#: No size, stride or offset is this large; torch counts in 64 bits.
MAX_NUMBER = 2**48
#: What torch returns for several named results, such as `torch.max` with a dimension.
_STRUCT_SEQUENCES = tuple(value for value in vars(torch.return_types).values() if isinstance(value, type))
_SCALARS = (type(None), bool, int, str)
#: Deepest nesting of a value that is packed or read back.
MAX_DEPTH = 16


def is_exactly(value: object, *kinds: type) -> bool:
    """Whether `value` is of one of these types itself; to compare types by `==` would ask a metaclass."""
    found = type(value)
    return any(found is kind for kind in kinds)


class TensorSpec(NamedTuple):
    """Where one tensor lies in a segment, and its shape."""

    dtype: str
    shape: list[int]
    stride: list[int]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the elements, bytes."""
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return _DTYPES[self.dtype]


def layout(tensors: Sequence[Tensor]) -> tuple[list[TensorSpec], int]:
    """Plan where tensors lie in a segment; return their specs and the size in bytes.

    A tensor keeps its strides when they are dense (a transposed matrix stays transposed); any other view becomes
    contiguous.
    """
    specs = []
    offset = 0
    for tensor in tensors:
        dense = _is_dense(tensor.shape, tensor.stride())
        stride = list(tensor.stride()) if dense else _contiguous_strides(tensor.shape)
        spec = TensorSpec(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), stride, offset)
        specs.append(spec)
        offset += -(-spec.nbytes // ALIGN) * ALIGN
    return specs, offset


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill a piece of memory without gap or overlap, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return expected > 0


def _contiguous_strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return strides


def specs_from(rows: Any, limit_bytes: int) -> list[TensorSpec]:
    """Read specs that another process sent; only such as `layout` makes are taken.

    Raises:
        ValueError: a dtype, shape or place that cannot be, or one that reaches past `limit_bytes`.
    """
    if not isinstance(rows, list):
        raise ValueError("tensor specs must be a list")
    specs = []
    for row in rows:
        spec = _spec_from(row)
        if spec.offset % ALIGN or spec.offset + spec.nbytes > limit_bytes:
            raise ValueError("a tensor spec that reaches outside its memory")
        specs.append(spec)
    return specs


def _spec_from(row: Any) -> TensorSpec:
    match row:
        case [str(dtype), list(shape), list(stride), offset] if dtype in _DTYPES and len(shape) == len(stride):
            numbers = [*shape, *stride, offset]
            possible = all(type(number) is int and 0 <= number < MAX_NUMBER for number in numbers)
            if possible and (_is_dense(shape, stride) or (0 in shape and stride == _contiguous_strides(shape))):
                return TensorSpec(dtype, shape, stride, offset)
    raise ValueError("a tensor spec that cannot be")


def flatten(value: Any, tensors: list[Tensor], depth: int = 0) -> Any:
    """Return the JSON skeleton of `value`, and append its tensors to `tensors`.

    Raises:
        TypeError: something that is neither a tensor, a scalar, nor a list, tuple or dict of such.
    """
    if depth > MAX_DEPTH:
        raise TypeError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"t": len(tensors) - 1}
    if is_exactly(value, *_SCALARS):  # and no subclass, which may compute when it is written down
        return {"v": value}
    if type(value) is float:
        return {"f": value.hex()}
    if is_exactly(value, list, tuple) or (isinstance(value, tuple) and is_exactly(value, *_STRUCT_SEQUENCES)):
        kind = "l" if type(value) is list else "u"
        return {kind: [flatten(item, tensors, depth + 1) for item in value]}
    if type(value) is dict:
        return {"d": [[flatten(key, [], depth + 1), flatten(item, tensors, depth + 1)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"y": str(value).removeprefix("torch.")}
    raise TypeError(f"a value of type {type(value).__name__}")


def leaves(value: Any) -> list[Tensor]:
    """Return the tensors of a nested value, in the order of `flatten`."""
    tensors: list[Tensor] = []
    flatten(value, tensors)
    return tensors


def unflatten(skeleton: Any, tensors: Sequence[Any], depth: int = 0) -> Any:  # noqa: PLR0911 - one line a kind
    """Rebuild the value of `flatten`.

    Raises:
        ValueError: not a skeleton.
    """
    if depth > MAX_DEPTH or not isinstance(skeleton, dict) or len(skeleton) != 1:
        raise ValueError("not a skeleton")
    ((kind, body),) = skeleton.items()
    match kind:
        case "t" if type(body) is int and 0 <= body < len(tensors):
            return tensors[body]
        case "v":
            return body
        case "f":
            return float.fromhex(body)
        case "l":
            return [unflatten(item, tensors, depth + 1) for item in body]
        case "u":
            return tuple(unflatten(item, tensors, depth + 1) for item in body)
        case "d":
            return {unflatten(key, [], depth + 1): unflatten(item, tensors, depth + 1) for key, item in body}
        case "y" if body in _DTYPES:
            return _DTYPES[body]
    raise ValueError("not a skeleton")


def shape_of(skeleton: Any) -> Any:
    """Reduce a skeleton to its structure: tensor numbers and scalar values do not count."""
    ((kind, body),) = skeleton.items()
    if kind in "lu":
        return [kind, [shape_of(item) for item in body]]
    if kind == "d":
        return [kind, [[key, shape_of(item)] for key, item in body]]
    return kind


def scalars_of(skeleton: Any) -> list[Any]:
    """List the values of a skeleton that are no tensors, in order."""
    ((kind, body),) = skeleton.items()
    match kind:
        case "l" | "u":
            return [scalar for item in body for scalar in scalars_of(item)]
        case "d":
            return [scalar for _, item in body for scalar in scalars_of(item)]
        case "f":
            return [float.fromhex(body)]
        case "v":
            return [body]
    return []
