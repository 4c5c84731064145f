"""Attribution: whose device time it is, whatever the kernels call themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.profile import Origin, Profile
from workers.exchange.trace import Overlap, Row, Span, Trace
from workers.judging.attribution import MAX_ROWS, Identity, attribute, origin

OWN = frozenset(
    {
        Identity("softmax_kernel", 256, 32),
        Identity("softmax_kernel", 512, 40),
        Identity("_fwd", 128, 24),
        Identity("sm90_xmma_gemm_f32f32", 128, 168),
        Identity("triton_poi_mine", 128, 16),
        Identity("void scale<c10::Half>(c10::Half const*, int)", None, 10),
        Identity("void at::native::vectorized_elementwise_kernel<4>(int)", None, 18),
        Identity("void cutlass::Kernel2<Mine>(Mine::Params)", None, 128),
    }
)


def made(rows: list[Row], calls: int = 1) -> Profile:
    return attribute(Trace(tuple(rows), (Span(1.0, 1.0, 0.0, 1),) * calls), OWN, calls)


def test_figures_are_for_one_call() -> None:
    rows = [Row("softmax_kernel", None, 300.0, 10), Row("vectorized_elementwise", "aten::add", 100.0, 20)]
    profile = made(rows, 10)
    assert profile.profile_ratio == pytest.approx(0.75)
    assert profile.launches == 1.0
    assert profile.device_us == pytest.approx(40.0)
    assert [(kernel.name, kernel.device_us, kernel.launches) for kernel in profile.kernels] == [
        ("softmax_kernel", 30.0, 1.0),
        ("vectorized_elementwise", 10.0, 2.0),
    ]


@pytest.mark.parametrize(
    ("overlaps", "ratio"),
    [
        ([], 560 / 630),
        ([Overlap("at::native::softmax", "softmax_kernel", 560.0)], 0.0),
        ([Overlap("at::native::softmax", "softmax_kernel", 35.0)], 525 / 595),
        ([Overlap("softmax_kernel", "softmax_kernel_of_another_stream", 560.0)], 0.0),
        ([Overlap("nobody", "of these", 1e9)], 560 / 630),
    ],
    ids=["one after the other", "beside all of it", "beside a part", "beside a stranger", "no such rows"],
)
def test_time_beside_others_is_theirs(overlaps: list[Overlap], ratio: float) -> None:
    """Eight small kernels that spin on side streams while torch works would be eight ninths of the time."""
    names = [("softmax_kernel", None, 560.0, 8), ("at::native::softmax", "aten::_softmax", 70.0, 1)]
    rows = [Row(*each) for each in names] + [Row("softmax_kernel_of_another_stream", None, 0.0, 1)]
    trace = Trace(tuple(rows), (Span(1.0, 1.0, 0.0, 1),), overlaps=tuple(overlaps))
    assert attribute(trace, OWN, 1).profile_ratio == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("row", "who"),
    [
        (Row("softmax_kernel", None, 1, 1, threads=256, registers=32), "candidate"),
        (Row("softmax_kernel", None, 1, 1, threads=512, registers=40), "candidate"),
        (Row("softmax_kernel", None, 1, 1), "candidate"),
        (Row("softmax_kernel", None, 1, 1, graph=True, threads=256, registers=32), "candidate"),
        (Row("softmax_kernel", "mine::softmax", 1, 1, threads=256, registers=32), "candidate"),
        (Row("sm90_xmma_gemm_f32f32", None, 1, 1, threads=128, registers=168), "candidate"),
        (Row("triton_poi_mine", None, 1, 1, threads=128, registers=16), "candidate"),
        (Row("void scale<c10::Half>(c10::Half const*, int)", None, 1, 1, threads=64, registers=10), "candidate"),
        (Row("softmax_kernel", None, 1, 1, threads=256, registers=40), "other"),
        (Row("softmax_kernel", None, 1, 1, graph=True, threads=128, registers=32), "other"),
        (Row("softmax_kernel", "aten::_softmax", 1, 1, threads=256, registers=32), "torch"),
        (Row("sm90_xmma_gemm_f32f32", "aten::mm", 1, 1, threads=128, registers=168), "library"),
        (Row("sm90_xmma_gemm_f32f32", None, 1, 1, threads=384, registers=168), "library"),
        (Row("sm90_xmma_gemm_f32f32", None, 1, 1, graph=True, threads=128, registers=90), "library"),
        (Row("void scale<c10::Half>(c10::Half const*, int)", None, 1, 1, registers=20), "other"),
        (Row("softmax_kernel", None, 1, 1, threads=256, registers=30), "candidate"),
        (Row("void at::native::vectorized_elementwise_kernel<4>(int)", None, 1, 1, registers=18), "torch"),
        (Row("void at::native::(anonymous namespace)::fill<float>(float*)", None, 1, 1), "torch"),
        (Row("void cutlass::Kernel2<Mine>(Mine::Params)", None, 1, 1, registers=128), "library"),
        (Row("void cub::CUB_200700::DeviceReduceKernel<float>(float*)", None, 1, 1), "library"),
        (Row("void pytorch_flash::flash_fwd_kernel<T>(P)", "aten::_flash_attention_forward", 1, 1), "library"),
        (Row("nvjet_tst_128x128_64x4_1x2_h_bz_coopA_NNT", None, 1, 1), "library"),
        (Row("splitKreduce_kernel", "aten::addmm", 1, 1), "library"),
        (Row("prepare", "aten::cudnn_convolution", 1, 1), "library"),
        (Row("vectorized_elementwise", "aten::add", 1, 1), "torch"),
        (Row("triton_poi_fused_add_0", None, 1, 1, threads=128, registers=16), "compiler"),
        (Row("triton_red_fused_sum_1", "triton_red_fused_sum_1", 1, 1), "compiler"),
        (Row("epilogue", "triton_poi_fused_add_0", 1, 1), "compiler"),
        (Row("Memcpy DtoD (Device -> Device)", None, 1, 1, memory=True), "memory"),
        (Row("Memset (Device)", "aten::zero_", 1, 1, memory=True), "memory"),
        (Row("a_kernel_of_nobody", None, 1, 1), "other"),
    ],
    ids=lambda value: f"{value.name} {value.operator}"[:60] if isinstance(value, Row) else value,
)
def test_who_wrote_what(row: Row, who: str) -> None:
    assert origin(row, OWN) is Origin(who)


@pytest.mark.parametrize(
    "row",
    [
        Row("softmax_kernel", "aten::mm", 5.0, 1),
        Row("softmax_kernel_2", None, 5.0, 1),
        Row("my_softmax_kernel", None, 5.0, 1),
        Row("softmax", None, 5.0, 1),
        Row("SOFTMAX_KERNEL", None, 5.0, 1),
        Row("softmax_kernel ", None, 5.0, 1),
        Row("void at::native::softmax_kernel<float>()", None, 5.0, 1),
        Row("", None, 5.0, 1),
    ],
    ids=lambda row: f"{row.name} {row.operator}",
)
def test_a_name_that_is_near_or_borrowed_is_not_the_candidates(row: Row) -> None:
    profile = made([row])
    assert profile.kernels[0].origin is not Origin.CANDIDATE
    assert (profile.profile_ratio, profile.launches) == (0.0, 0.0)


def test_the_same_name_within_an_operator_is_counted_apart() -> None:
    rows = [Row("_fwd", None, 30.0, 3), Row("_fwd", "aten::_softmax", 70.0, 7), Row("_fwd", "mine::op", 10.0, 1)]
    profile = made(rows)
    assert [(kernel.origin, kernel.device_us, kernel.launches) for kernel in profile.kernels] == [
        (Origin.TORCH, 70.0, 7.0),
        (Origin.CANDIDATE, 40.0, 4.0),
    ]
    assert profile.profile_ratio == pytest.approx(40 / 110)


def test_copies_count_as_device_time_and_never_as_own() -> None:
    rows = [
        Row("_fwd", None, 60.0, 1),
        Row("Memcpy HtoD", None, 30.0, 1, memory=True),
        Row("_fwd", None, 10.0, 1, memory=True),
    ]
    assert made(rows).profile_ratio == pytest.approx(0.6)


@pytest.mark.parametrize("rows", [[], [Row("_fwd", None, 0.0, 5)]], ids=["nothing", "no time"])
def test_without_device_time_there_is_no_ratio(rows: list[Row]) -> None:
    profile = made(rows)
    assert profile.profile_ratio is None
    assert profile.fault == "no activity of the device was recorded"


def test_a_recording_that_is_not_whole_gives_no_ratio() -> None:
    profile = attribute(Trace((Row("_fwd", None, 60.0, 1),), (), "2 launches are missing"), OWN, 1)
    assert (profile.profile_ratio, profile.fault, profile.window_us) == (None, "2 launches are missing", None)
    assert profile.kernels[0].origin is Origin.CANDIDATE


def test_times_of_a_call_are_medians() -> None:
    spans = (Span(10.0, 8.0, 0.0, 1), Span(30.0, 9.0, 0.0, 2), Span(20.0, 7.0, 3.0, 1))
    profile = attribute(Trace((Row("_fwd", None, 60.0, 3),), spans), OWN, 3)
    assert (profile.window_us, profile.busy_us, profile.early_us, profile.streams) == (20.0, 8.0, 0.0, 2)


def test_a_long_profile_is_cut_and_its_sums_are_not() -> None:
    rows = [Row(f"kernel_{number}", None, 1.0, 1) for number in range(2 * MAX_ROWS)]
    rows.append(Row("_fwd", None, 0.5, 1))
    profile = made(rows)
    assert len(profile.kernels) == MAX_ROWS
    assert profile.device_us == pytest.approx(2 * MAX_ROWS + 0.5)
    assert profile.launches == 1.0
    assert profile.profile_ratio == pytest.approx(0.5 / (2 * MAX_ROWS + 0.5))
    assert all(len(kernel.name) <= 200 for kernel in made([Row("x" * 5000, None, 1.0, 1)]).kernels)


ROWS = st.builds(
    Row,
    st.sampled_from(["_fwd", "softmax_kernel", "gemm", "Memcpy DtoD"]),
    st.sampled_from([None, "aten::mm", "mine::op"]),
    st.floats(0.0, 1e6),
    st.integers(1, 100),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 128, 256]),
    st.sampled_from([None, 24, 32]),
)


@given(st.lists(ROWS, max_size=8), st.integers(1, 10))
def test_the_ratio_is_a_share(rows: list[Row], calls: int) -> None:
    profile = made(rows, calls)
    assert profile.device_us == pytest.approx(sum(row.device_us for row in rows) / calls)
    times = [kernel.device_us for kernel in profile.kernels]
    assert times == sorted(times, reverse=True)
    if profile.profile_ratio is not None:
        assert 0.0 <= profile.profile_ratio <= 1.0
        mine = [row for row in rows if row.operator != "aten::mm" and not row.memory]
        own = sum(row.device_us for row in mine if any(identity.fits(row) for identity in OWN))
        assert profile.profile_ratio * profile.device_us == pytest.approx(own / calls)
