"""Attribution: whose device time it is, whatever the kernels call themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.evaluation import Origin, Profile
from workers.profiling import MAX_ROWS, Row, attribute

OWN = {"softmax_kernel", "_fwd"}


def origins(profile: Profile) -> dict[str, Origin]:
    return {kernel.name: kernel.origin for kernel in profile.kernels}


def test_figures_are_for_one_call() -> None:
    rows = [Row("softmax_kernel", None, 300.0, 10), Row("vectorized_elementwise", "aten::add", 100.0, 20)]
    profile = attribute(rows, OWN, 10)
    assert profile.profile_ratio == pytest.approx(0.75)
    assert profile.launches == 1.0
    assert profile.device_us == pytest.approx(40.0)
    assert [(kernel.name, kernel.device_us, kernel.launches) for kernel in profile.kernels] == [
        ("softmax_kernel", 30.0, 1.0),
        ("vectorized_elementwise", 10.0, 2.0),
    ]


def test_who_wrote_what() -> None:
    rows = [
        Row("softmax_kernel", None, 1.0, 1),
        Row("sm90_xmma_gemm_f32f32", "aten::mm", 1.0, 1),
        Row("triton_poi_fused_add_0", None, 1.0, 1),
        Row("triton_red_fused_sum_1", "inductor::run", 1.0, 1),
        Row("Memcpy DtoD (Device -> Device)", None, 1.0, 1),
        Row("Memset (Device)", "aten::zero_", 1.0, 1),
        Row("cutlass_80_tensorop", None, 1.0, 1),
    ]
    assert origins(attribute(rows, OWN, 1)) == {
        "softmax_kernel": Origin.CANDIDATE,
        "sm90_xmma_gemm_f32f32": Origin.TORCH,
        "triton_poi_fused_add_0": Origin.COMPILER,
        "triton_red_fused_sum_1": Origin.COMPILER,
        "Memcpy DtoD (Device -> Device)": Origin.MEMORY,
        "Memset (Device)": Origin.MEMORY,
        "cutlass_80_tensorop": Origin.OTHER,
    }


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
    profile = attribute([row], OWN, 1)
    assert profile.kernels[0].origin is not Origin.CANDIDATE
    assert (profile.profile_ratio, profile.launches) == (0.0, 0.0)


def test_the_same_name_within_an_operator_is_counted_apart() -> None:
    rows = [Row("_fwd", None, 30.0, 3), Row("_fwd", "aten::_softmax", 70.0, 7), Row("_fwd", None, 10.0, 1)]
    profile = attribute(rows, OWN, 1)
    assert [(kernel.origin, kernel.device_us, kernel.launches) for kernel in profile.kernels] == [
        (Origin.TORCH, 70.0, 7.0),
        (Origin.CANDIDATE, 40.0, 4.0),
    ]
    assert profile.profile_ratio == pytest.approx(40 / 110)


def test_copies_count_as_device_time_and_never_as_own() -> None:
    rows = [Row("_fwd", None, 60.0, 1), Row("Memcpy HtoD", None, 30.0, 1), Row("Memset (Device)", None, 10.0, 1)]
    assert attribute(rows, OWN, 1).profile_ratio == pytest.approx(0.6)


@pytest.mark.parametrize("rows", [[], [Row("_fwd", None, 0.0, 5)]], ids=["nothing", "no time"])
def test_without_device_time_there_is_no_ratio(rows: list[Row]) -> None:
    assert attribute(rows, OWN, 2).profile_ratio is None


def test_a_long_profile_is_cut_and_its_sums_are_not() -> None:
    rows = [Row(f"kernel_{number}", None, 1.0, 1) for number in range(2 * MAX_ROWS)]
    rows.append(Row("_fwd", None, 0.5, 1))
    profile = attribute(rows, OWN, 1)
    assert len(profile.kernels) == MAX_ROWS
    assert profile.device_us == pytest.approx(2 * MAX_ROWS + 0.5)
    assert profile.launches == 1.0
    assert profile.profile_ratio == pytest.approx(0.5 / (2 * MAX_ROWS + 0.5))
    assert all(len(kernel.name) <= 200 for kernel in attribute([Row("x" * 5000, None, 1.0, 1)], OWN, 1).kernels)


ROWS = st.builds(
    Row,
    st.sampled_from(["_fwd", "softmax_kernel", "gemm", "Memcpy DtoD"]),
    st.sampled_from([None, "aten::mm"]),
    st.floats(0.0, 1e6),
    st.integers(1, 100),
)


@given(st.lists(ROWS, max_size=8), st.integers(1, 10))
def test_the_ratio_is_a_share(rows: list[Row], calls: int) -> None:
    profile = attribute(rows, OWN, calls)
    assert profile.device_us == pytest.approx(sum(row.device_us for row in rows) / calls)
    times = [kernel.device_us for kernel in profile.kernels]
    assert times == sorted(times, reverse=True)
    if profile.profile_ratio is not None:
        assert 0.0 <= profile.profile_ratio <= 1.0
        own = sum(row.device_us for row in rows if row.operator is None and row.name in OWN)
        assert profile.profile_ratio * profile.device_us == pytest.approx(own / calls)
