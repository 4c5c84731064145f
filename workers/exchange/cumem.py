"""Virtual memory management of the CUDA driver: device memory that another process maps by a file descriptor.

Unlike CUDA IPC, the memory is an allocation of its own with no neighbours, the descriptor crosses between users, and
each process chooses the access of its own mapping. Source: CUDA driver API, Virtual Memory Management.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE.
_PINNED, _DESCRIPTOR, _ON_DEVICE = 1, 1, 1
#: CU_MEM_ACCESS_FLAGS_PROT_READ and _READWRITE.
_READ, _READ_WRITE = 1, 3
_OUT_OF_MEMORY = 2


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        *(("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", _Location)),
        *(("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class DeviceMemoryError(RuntimeError):
    """A call of the driver failed; `code` is its CUresult."""

    def __init__(self, call: str, code: int) -> None:
        """Name the call."""
        super().__init__(f"{call} gave CUDA error {code}")
        self.code = code

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the device has no room."""
        return self.code == _OUT_OF_MEMORY


def create(size: int) -> tuple[int, int]:
    """Allocate at least `size` bytes on the current device; return a descriptor and the bytes that there are.

    Raises:
        DeviceMemoryError: the device has no room, or cannot share memory.
    """
    _initialize()
    properties = _Properties(_PINNED, _DESCRIPTOR, _Location(_ON_DEVICE, torch.cuda.current_device()))
    granularity = ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(properties), 0)
    rounded = -(-max(size, 1) // granularity.value) * granularity.value
    handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
    _call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(rounded), ctypes.byref(properties), ctypes.c_uint64(0))
    try:
        _call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _DESCRIPTOR, ctypes.c_uint64(0))
    finally:
        _call("cuMemRelease", handle)  # the descriptor and the mappings keep the memory
    return fd.value, rounded


def bytes_of(fd: int, size: int, *, writable: bool) -> Tensor:
    """Map `size` bytes (as `create` gave them) of another's memory; the mapping goes with the last view of the tensor.

    Raises:
        DeviceMemoryError: `fd` is no device memory of this size.
    """
    _initialize()
    return torch.as_tensor(_Mapping(fd, size, writable=writable), device="cuda")


class _Mapping:
    """One mapping of shared memory, which torch reads as an array of bytes."""

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        self._size = ctypes.c_size_t(size)
        self._address = ctypes.c_uint64()
        self._unmap: Callable[[], None] = lambda: None
        self._free: Callable[[], None] = lambda: None
        handle = ctypes.c_uint64()
        _call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), _DESCRIPTOR)
        try:
            none = ctypes.c_uint64(0)
            _call("cuMemAddressReserve", ctypes.byref(self._address), self._size, ctypes.c_size_t(0), none, none)
            self._free = functools.partial(_call, "cuMemAddressFree", self._address, self._size)
            _call("cuMemMap", self._address, self._size, ctypes.c_size_t(0), handle, none)
            self._unmap = functools.partial(_call, "cuMemUnmap", self._address, self._size)
        finally:
            _call("cuMemRelease", handle)
        where = _Location(_ON_DEVICE, torch.cuda.current_device())
        access = _Access(where, _READ_WRITE if writable else _READ)
        _call("cuMemSetAccess", self._address, self._size, ctypes.byref(access), ctypes.c_size_t(1))
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._address.value, False),
            "version": 3,
        }

    def __del__(self) -> None:
        """Wait for whatever still uses the memory, and give the addresses back."""
        if self._address.value:
            torch.cuda.synchronize()
        self._unmap()
        self._free()


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _initialize() -> None:
    """Make torch's context current in this thread."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.current_stream().synchronize()


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        raise DeviceMemoryError(name, code)
