"""Kernels in shared objects: real device code, made by the assembler that comes with Triton."""

import _ctypes
import ctypes
import struct
import subprocess
from pathlib import Path

import pytest
import triton
from hypothesis import given
from hypothesis import strategies as st

from tests.need import PATIENT_S
from workers.harness.fatbin import MAX_BYTES, DeviceKernel, kernels_of
from workers.harness.profiler import built_kernels

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
PTX = """
.version 8.0
.target {target}
.address_size 64
.func (.param .b32 result) twice(.param .b32 x)
{{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [x];
    add.s32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
}}
.visible .entry _Z5scalePi(.param .u64 y)
{{
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    .param .b32 x;
    .param .b32 result;
    ld.param.u64 %rd1, [y];
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r1, [%rd2];
    st.param.b32 [x], %r1;
    call (result), twice, (x);
    ld.param.b32 %r2, [result];
    st.global.u32 [%rd2], %r2;
    ret;
}}
.visible .entry plain(.param .u64 y)
{{
    ret;
}}
"""


@pytest.fixture(scope="module", params=["sm_80", "sm_90"])
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("image")
    (folder / "kernels.ptx").write_text(PTX.format(target=request.param))
    command = [PTXAS, f"--gpu-name={request.param}", folder / "kernels.ptx", "-o", folder / "kernels.cubin"]
    subprocess.run(command, check=True, timeout=PATIENT_S)
    return (folder / "kernels.cubin").read_bytes()


def names(data: bytes, folder: Path) -> set[str]:
    path = folder / "extension.so"
    path.write_bytes(data)
    return {kernel.name for kernel in kernels_of(path)}


def test_entry_points_and_nothing_else(image: bytes, tmp_path: Path) -> None:
    path = tmp_path / "extension.so"
    path.write_bytes(Path("/bin/sh").read_bytes() + b"\0" * 7 + image)
    found = {kernel.name: kernel.registers for kernel in kernels_of(path)}
    assert found.keys() == {"_Z5scalePi", "plain"}
    assert all(0 < registers <= 255 for registers in found.values())
    assert found["_Z5scalePi"] > found["plain"]


def test_several_images_are_one_set(image: bytes, tmp_path: Path) -> None:
    path = tmp_path / "extension.so"
    path.write_bytes(image + image.replace(b"plain", b"other"))
    assert {kernel.name for kernel in kernels_of(path)} == {"_Z5scalePi", "plain", "other"}


def test_what_this_process_has_loaded_from_a_folder(image: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "extensions"
    folder.mkdir()
    copy = folder / "scale.so"
    copy.write_bytes(Path(_ctypes.__file__).read_bytes() + image)
    assert built_kernels(str(folder)) == []
    library = ctypes.CDLL(str(copy))
    assert {name for name, _ in built_kernels(str(folder))} == {"_Z5scalePi", "scale(int*)", "plain"}
    assert built_kernels(str(tmp_path / "ext")) == []
    del library


def test_files_without_device_code(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no code")
    assert kernels_of(tmp_path / "text") == kernels_of(Path("/bin/sh")) == kernels_of(tmp_path / "none") == frozenset()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert kernels_of(tmp_path / "large") == frozenset()


def test_damage_is_no_error(image: bytes, tmp_path: Path) -> None:
    for cut in range(0, len(image), 97):
        assert names(image[:cut], tmp_path) <= {"_Z5scalePi", "plain"}


@given(st.binary(max_size=80), st.integers(0, 63), st.integers(0, 2**32 - 1))
def test_nonsense_is_no_error(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, value: int) -> None:
    header = bytearray(b"\x7fELF\x02\x01" + bytes(58))
    header[18:20] = struct.pack("<H", 190)
    struct.pack_into("<I", header, min(max(at, 20), 60), value)
    path = tmp_path_factory.getbasetemp() / "nonsense"
    path.write_bytes(bytes(header) + noise)
    assert all(isinstance(kernel, DeviceKernel) for kernel in kernels_of(path))
