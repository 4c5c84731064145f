"""Lent: tensors of ours as a candidate gets them."""

from torch import Tensor


def aliases_of(tensors: list[Tensor]) -> list[Tensor]:
    """Make other objects of the same tensors: same memory, same version counters."""
    return [tensor.detach() for tensor in tensors]


def rewrite(old: list[Tensor], new: list[Tensor]) -> bool:
    """Put new contents into old tensors behind their backs: same addresses, same version counters; False if unlike."""
    if [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in old] != [
        (tensor.shape, tensor.dtype, tensor.stride()) for tensor in new
    ]:
        return False
    for tensor, content in zip(old, new, strict=True):
        tensor.data.copy_(content)
    return True
