"""Segment: memory that judge and candidate share, in which tensors lie; on the device where there is one.

Host memory is a sealed memory file (`memfd`), which neither side can shrink under the other. Device memory is an
allocation of its own (`workers.exchange.cumem`), so that nothing crosses the bus. What the judge gives is mapped for
reading by the candidate's harness; what the candidate gives is copied out before it is looked at.
"""

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from workers.exchange import cumem
from workers.exchange.shared import TensorSpec

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEAL_FUTURE_WRITE = 0x10


class Segment:
    """A piece of shared memory that holds tensors."""

    on_device = False

    def __init__(self, fd: int, size: int, memory: Tensor) -> None:
        """Own `fd`, of whose memory `memory` is a view as bytes."""
        self.fd = fd
        self.size = size
        self._bytes = memory

    def view(self, spec: TensorSpec) -> Tensor:
        """Return the tensor at `spec` as a view of the memory (dense, in the order of its strides)."""
        flat = self._bytes[spec.offset : spec.offset + spec.nbytes].view(spec.torch_dtype)
        return flat.as_strided(spec.shape, spec.stride)

    def write(self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> None:
        """Copy `tensors` to their places; they are there when this returns."""
        for spec, tensor in zip(specs, tensors, strict=True):
            self.view(spec).copy_(tensor)
        self._wait()

    def read(self, specs: Sequence[TensorSpec], device: str) -> list[Tensor]:
        """Copy the tensors out, to `device`; whatever becomes of the memory afterwards does not touch them."""
        tensors = [
            torch.empty_strided(spec.shape, spec.stride, dtype=spec.torch_dtype, device=device).copy_(self.view(spec))
            for spec in specs
        ]
        self._wait()
        return tensors

    def _wait(self) -> None:
        """Wait for copies that were only begun."""

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last tensor that views it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        """Close, however the segment was lost."""
        self.close()


class HostSegment(Segment):
    """Memory of the host."""

    def __init__(self, fd: int, size: int, *, writable: bool = True) -> None:
        """Map `size` bytes of `fd`, which this object then owns."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        mapped = mmap.mmap(fd, max(size, 1), access=access)
        # By its address: torch warns of memory that cannot be written, and to keep it from that asks whoever has put
        # something among Python's filters of warnings.
        address: int = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
        lent = (ctypes.c_ubyte * len(mapped)).from_address(address)
        lent.mapped = mapped  # type: ignore[attr-defined]  # lives as long as the last view
        super().__init__(fd, size, torch.frombuffer(lent, dtype=torch.uint8))

    @classmethod
    def create(cls, size: int, *, ours: bool = False) -> "HostSegment":
        """Make a segment whose size is sealed; one that is `ours` can be written through this object alone."""
        fd = os.memfd_create("drkq", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, max(size, 1))
        segment = cls(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | (_SEAL_FUTURE_WRITE if ours else 0))
        return segment


class DeviceSegment(Segment):
    """Memory of the CUDA device that this process uses."""

    on_device = True

    def __init__(self, fd: int, size: int, *, writable: bool = True) -> None:
        """Map `size` bytes of `fd`, which this object then owns."""
        super().__init__(fd, size, cumem.bytes_of(fd, size, writable=writable))
        self._sync = torch.cuda.current_stream().synchronize

    @classmethod
    def create(cls, size: int) -> "DeviceSegment":
        """Allocate a segment of at least `size` bytes."""
        return cls(*cumem.create(size))

    def _wait(self) -> None:
        self._sync()


def create(size: int, device: str, *, ours: bool = False) -> Segment:
    """Make a segment for tensors of `device`; in host memory if the device has no room for it.

    One that is `ours` is written by this process alone, the other only reads it.
    """
    if device == "cuda":
        try:
            return DeviceSegment.create(size)
        except cumem.DeviceMemoryError as error:
            if not error.is_out_of_memory:
                raise
    return HostSegment.create(size, ours=ours)


def adopt(fd: int, size: int, *, on_device: bool, writable: bool) -> Segment:
    """Map a segment that the other side has made."""
    kind = DeviceSegment if on_device else HostSegment
    return kind(fd, size, writable=writable)
