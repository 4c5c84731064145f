"""Values in shared memory: nothing is lost on the way, and no other process decides what is read where."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tests.need import PATIENT_S
from workers.exchange import shared
from workers.exchange.integrity import same_bits
from workers.exchange.segment import HostSegment
from workers.exchange.shared import MAX_DEPTH, TensorSpec, flatten, layout, scalars_of, shape_of, specs_from, unflatten

# fmt: off
NAMES = [
    "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "bool", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
# fmt: on
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(DTYPES)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of every dtype, with any bits in them: dense, transposed, sliced, expanded or empty."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    order = list(draw(st.permutations(range(len(shape)))))
    count = int(torch.Size(shape).numel()) * dtype.itemsize
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).reshape(shape).permute(order) if count else torch.empty(shape, dtype=dtype)
    match draw(st.sampled_from(["whole", "slice", "expand"])):
        case "slice" if tensor.dim():
            return tensor[..., ::2]
        case "expand":
            return tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor


VALUES = st.recursive(
    SCALARS | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


def carry(value: Any) -> Any:
    """Send `value` as the judge sends inputs: a skeleton, specs, and memory that the reader maps for himself."""
    leaves: list[Tensor] = []
    skeleton = flatten(value, leaves)
    specs, size = layout(leaves)
    ours = HostSegment.create(size, ours=True)
    ours.write(specs, leaves)
    theirs = HostSegment(os.dup(ours.fd), size, writable=False)
    arrived = theirs.read(specs_from([list(spec) for spec in specs], size), "cpu")
    ours.close()
    theirs.close()
    return unflatten(skeleton, arrived)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal: kinds and keys, and tensors by their bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return same_bits(left, right)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(same, left.values(), right.values()))
    return bool(left == right)


@given(VALUES)
def test_values_come_as_they_were(value: Any) -> None:
    assert same(carry(value), value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.0, 5e-324, 0.1])
def test_floats_come_to_the_last_bit(number: float) -> None:
    assert carry([number])[0].hex() == number.hex()


@pytest.mark.parametrize(
    ("tensor", "stride"),
    [
        (torch.ones(3, 5).t(), (1, 5)),
        (torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), (60, 1, 15, 3)),
        (torch.ones(4, 6)[:, ::2], (3, 1)),
        (torch.ones(4, 1).expand(4, 5), (5, 1)),
        (torch.ones(()), ()),
        (torch.ones(3, 0, 2), (2, 2, 1)),
    ],
    ids=["transposed", "channels last", "sliced", "expanded", "scalar", "empty"],
)
def test_dense_strides_are_kept_and_others_become_contiguous(tensor: Tensor, stride: tuple[int, ...]) -> None:
    assert carry(tensor).stride() == stride


def test_tensors_do_not_share_places() -> None:
    specs, size = layout([torch.ones(5), torch.ones(0), torch.ones(1000, dtype=torch.int8), torch.ones(1)])
    ends = [0, *(spec.offset + spec.nbytes for spec in specs)]
    assert all(spec.offset >= end and spec.offset % 256 == 0 for spec, end in zip(specs, ends, strict=False))
    assert size >= ends[-1]


def attack(fd: int) -> dict[str, bool]:
    """Let another process, which is given `fd`, try to change the memory; return what it could do."""
    program = f"""
        import fcntl, mmap, os
        fd = {fd}
        size = os.fstat(fd).st_size
        def can(action):
            try:
                action()
            except (OSError, ValueError):
                return False
            return True
        def put(offset, fd=fd):
            os.pwrite(fd, b"hostile", offset)
        print({{
            "map": can(lambda: mmap.mmap(fd, size).write(b"hostile")),
            "write": can(lambda: put(0)),
            "reopen and write": can(lambda: put(0, os.open(f"/proc/self/fd/{{fd}}", os.O_RDWR))),
            "truncate on opening": can(lambda: os.open(f"/proc/self/fd/{{fd}}", os.O_RDWR | os.O_TRUNC)),
            "shrink": can(lambda: os.ftruncate(fd, 0)),
            "grow": can(lambda: os.ftruncate(fd, size + 4096)),
            "write past the end": can(lambda: put(size)),
            "read": can(lambda: mmap.mmap(fd, size, access=mmap.ACCESS_READ).read(8)),
        }})
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    printed = subprocess.run(
        command, pass_fds=[fd], capture_output=True, text=True, check=True, timeout=PATIENT_S
    ).stdout
    done: dict[str, bool] = eval(printed)
    return done


def test_our_memory_can_be_read_by_others_and_written_by_us_alone() -> None:
    segment = HostSegment.create(8192, ours=True)
    spec = TensorSpec("float32", [2048], [1], 0)
    segment.write([spec], [torch.arange(2048.0)])
    assert [name for name, done in attack(segment.fd).items() if done] == ["read"]
    assert torch.equal(segment.view(spec), torch.arange(2048.0))
    segment.write([spec], [torch.ones(2048)])
    assert torch.equal(segment.view(spec), torch.ones(2048))


def test_memory_for_outputs_keeps_its_size() -> None:
    segment = HostSegment.create(8192)
    allowed = {"map", "write", "reopen and write", "read"}
    assert {name for name, done in attack(segment.fd).items() if done} == allowed
    assert bytes(segment.view(TensorSpec("uint8", [7], [1], 0)).tolist()) == b"hostile"


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        "x",
        [None],
        [[]],
        [["float32", [4], [1]]],
        [["float32", [4], [1], 0, 0]],
        [["float32", "4", "1", 0]],
        [["float32", [4], [], 0]],
        [[["float32"], [4], [1], 0]],
        [["float", [4], [1], 0]],
        [["object", [4], [1], 0]],
        [["float32", [-4], [1], 0]],
        [["float32", [4], [-1], 0]],
        [["float32", [4], [1], -256]],
        [["float32", [4], [1], 128]],
        [["float32", [4], [1], 1024]],
        [["float32", [257], [1], 0]],
        [["float32", [129], [1], 512]],
        [["float32", [2**40], [1], 0]],
        [["float32", [2**64], [1], 0]],
        [["float32", [2**32, 2**32], [2**32, 1], 0]],
        [["float32", [0, 2**62], [2**62, 1], 0]],
        [["float32", [0, 4], [7, 1], 0]],
        [["float32", [4], [2], 0]],
        [["float32", [4], [0], 0]],
        [["float32", [4, 4], [1, 1], 0]],
        [["float32", [4, 4], [4, 3], 0]],
        [["float32", [True], [1], 0]],
        [["float32", [4], [True], 0]],
        [["float32", [4], [1], False]],
        [["float32", [4.0], [1], 0]],
        [["float32", [float("inf")], [1], 0]],
    ],
)
def test_specs_that_cannot_be_are_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="tensor spec"):
        specs_from(rows, 1024)


ANY_INT = st.integers(-2, 9) | st.integers(-(2**70), 2**70) | st.booleans() | st.floats() | st.none()
ANY_SPEC = st.tuples(
    st.sampled_from(["float32", "int8", "bool", "complex128", "bfloat16", "x"]),
    st.lists(ANY_INT, max_size=3),
    st.lists(ANY_INT, max_size=3),
    st.sampled_from([0, 256, 512, 1024, 2**63]) | ANY_INT,
)


@given(st.lists(ANY_SPEC, max_size=3))
@example([("int8", [3, 4], [1, 3], 256), ("int8", [4, 3], [3, 1], 0)])
@example([("float32", [0, 5], [5, 1], 768)])
def test_specs_are_refused_or_stay_inside(rows: Sequence[Any]) -> None:
    segment = HostSegment.create(1000)
    try:
        specs = specs_from([list(row) for row in rows], segment.size)
    except ValueError:
        return
    start = segment.view(TensorSpec("uint8", [1000], [1], 0)).data_ptr()
    for spec, tensor in zip(specs, segment.read(specs, "cpu"), strict=True):
        view = segment.view(spec)
        assert list(view.shape) == spec.shape
        assert same_bits(view, tensor)
        if not view.numel():
            continue
        assert start <= view.data_ptr()
        assert view.data_ptr() + view.numel() * view.element_size() <= start + 1000
        view.copy_(tensor)  # raises where elements overlap


def test_what_is_neither_tensor_nor_scalar_is_refused() -> None:
    for value in (object(), {1, 2}, b"bytes", torch.float32.to_complex, [lambda: None], {"a": range(3)}):
        with pytest.raises(TypeError, match="a value of type"):
            flatten(value, [])


def test_nesting_has_an_end() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert unflatten(flatten(value, []), []) == value
    with pytest.raises(TypeError, match="nested deeper"):
        flatten([value], [])
    with pytest.raises(ValueError, match="skeleton"):
        unflatten({"l": [flatten(value, [])]}, [])
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="nested deeper"):
        flatten(endless, [])


@pytest.mark.parametrize(
    "skeleton",
    [
        None,
        3,
        "t",
        [],
        {},
        {"t": 1},
        {"t": -1},
        {"t": True},
        {"t": "0"},
        {"x": 0},
        {"v": 1, "f": "0x1p0"},
        {"y": "int"},
    ],
)
def test_what_is_no_skeleton_is_refused(skeleton: Any) -> None:
    with pytest.raises(ValueError, match="skeleton"):
        unflatten(skeleton, [torch.ones(1)])


def test_structures_differ_by_nesting_kinds_and_keys_alone() -> None:
    one, two = torch.ones(1), torch.ones(2)

    def structure(value: Any) -> Any:
        return shape_of(flatten(value, []))

    assert structure([one, {"a": (two, 3)}]) == structure([two, {"a": (one, 4)}])
    assert structure(one) != structure([one])
    assert structure([one]) != structure((one,))
    assert structure({"a": one}) != structure({"b": one})
    assert structure([one, 3]) != structure([one, 3.0])
    assert structure([one, one]) != structure([one])


def test_a_segment_of_nothing() -> None:
    segment = HostSegment.create(0, ours=True)
    segment.write([], [])
    assert segment.read([], "cpu") == []
    segment.close()
    segment.close()
    assert segment.fd == -1


def test_a_view_outlives_the_descriptor() -> None:
    segment = HostSegment.create(1024)
    spec = TensorSpec("float32", [4], [1], 0)
    segment.write([spec], [torch.arange(4.0)])
    view = segment.view(spec)
    segment.close()
    del segment
    assert torch.equal(view, torch.arange(4.0))


def test_every_dtype_of_torch_is_known_by_its_name() -> None:
    assert {str(dtype).removeprefix("torch.") for dtype in DTYPES} <= shared._DTYPES.keys()


def test_scalars_are_listed_in_order() -> None:
    value = [1, (2.5, torch.ones(2)), {"a": "text", "b": [None, torch.float32]}, True]
    assert scalars_of(flatten(value, [])) == [1, 2.5, "text", None, True]
    assert scalars_of(flatten(torch.ones(1), [])) == []
