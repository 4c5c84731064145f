"""Kernels in a shared object: the machine code for the device that nvcc puts into it (uncompressed ELF images)."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Largest shared object that is read, bytes: what a candidate builds is small, and what it copies need not be read.
MAX_BYTES = 64 * 2**20
_MAGIC = b"\x7fELF\x02\x01"
_MACHINE_CUDA = 190
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
#: In the section `.nv.info`: format of a sized record, and the attribute that holds (symbol, registers a thread).
_SIZED, _REGISTERS = 0x04, 0x2F
#: Each entry point, and no other function, has a bank of constants for its arguments.
_ENTRY = ".nv.constant0."


class DeviceKernel(NamedTuple):
    """One `__global__` function."""

    name: str
    """As the linker knows it; mangled in C++."""
    registers: int
    """Registers that one thread needs; 0 when the image does not say."""


def kernels_of(path: Path) -> frozenset[DeviceKernel]:
    """List the kernels of a shared object; none if it holds no uncompressed device code, or is no such file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return frozenset()
        data = path.read_bytes()
    except OSError:
        return frozenset()
    found: set[DeviceKernel] = set()
    for start in _images(data):
        try:
            found |= _kernels_in(data[start:])
        except (struct.error, IndexError, KeyError, ValueError):
            continue  # damaged, or made to look like an image: whoever made it has no kernels there
    return frozenset(found)


def _images(data: bytes) -> Iterator[int]:
    """Find the ELF images for the device."""
    for match in re.finditer(re.escape(_MAGIC), data):
        start = match.start()
        if len(data) - start >= _HEADER.size and _HEADER.unpack_from(data, start)[1] == _MACHINE_CUDA:
            yield start


def _kernels_in(image: bytes) -> set[DeviceKernel]:
    header = _HEADER.unpack_from(image)
    table, width, count, names_at = header[5], header[10], header[11], header[12]
    rows = [_SECTION.unpack_from(image, table + number * width) for number in range(count)]
    sections = {_text(image, rows[names_at][4] + row[0]): row for row in rows}
    entries = [name.removeprefix(_ENTRY) for name in sections if name.startswith(_ENTRY)]
    registers = dict(_registers(image, sections)) if ".nv.info" in sections else {}
    return {DeviceKernel(name, registers.get(name, 0)) for name in entries}


def _registers(image: bytes, sections: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    symbols, names = sections[".symtab"][4], sections[".strtab"][4]
    at, size = sections[".nv.info"][4:6]
    end = min(at + size, len(image))
    while at < end:
        form, attribute, length = struct.unpack_from("<BBH", image, at)
        at += 4
        if form != _SIZED:
            continue
        if attribute == _REGISTERS:
            symbol, count = struct.unpack_from("<II", image, at)
            yield _text(image, names + _SYMBOL.unpack_from(image, symbols + symbol * _SYMBOL.size)[0]), count
        at += length


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()
