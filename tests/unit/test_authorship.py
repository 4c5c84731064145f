"""Authorship: what the profile alone decides."""

from typing import Any

import pytest

from drkernel_q import rules
from drkernel_q.evaluation import Evaluation, Integrity, Protocol, Stage
from drkernel_q.observation import ModeCall, Probe
from drkernel_q.profile import KernelProfile, Origin, Profile
from tests.values import an_evaluation, observed

NOT_LEFT_OUT = observed().probes | {Probe.ABLATION: "the last trial launched no Triton kernel"}


def kernel(origin: str, device_us: float, **more: Any) -> KernelProfile:
    return KernelProfile(name=f"{origin} kernel", device_us=device_us, launches=1, origin=Origin(origin), **more)


def profiled(*kernels: KernelProfile, **more: Any) -> Profile:
    own = [row for row in kernels if row.origin is Origin.CANDIDATE]
    device_us = sum(row.device_us for row in kernels)
    return Profile(
        profile_ratio=sum(row.device_us for row in own) / device_us,
        launches=len(own),
        device_us=device_us,
        kernels=kernels,
        **{"window_us": 100.0, "busy_us": 100.0, "early_us": 0.0, "streams": 1} | more,
    )


def verdict(profile: Profile | None, backend: str = "triton", **changes: Any) -> tuple[Integrity, list[str]]:
    stages = tuple(Stage) if profile is not None else (Stage.CORRECTNESS, Stage.INTEGRITY, Stage.TIMING)
    evaluation: Evaluation = an_evaluation(
        speedup=2.0,
        profile=profile,
        protocol=Protocol(backend=backend, stages=stages),
        observations=observed(**{"clock_ms": 0.1} | changes),
    )
    found = rules.judge(evaluation)
    return found.integrity, [item.code for item in found.evidence]


OWN, TORCH = kernel("candidate", 60.0), kernel("torch", 40.0)
NO_TRITON = {"own_launches": 0, "idle_calls": 100, "profiled_launches": 0, "probes": NOT_LEFT_OUT}


@pytest.mark.parametrize("backend", ["triton", "cuda", "any"])
def test_own_kernels_are_clean_whatever_is_asked_for(backend: str) -> None:
    assert verdict(profiled(OWN, TORCH), backend) == (Integrity.CLEAN, [])


def test_cuda_kernels_are_seen_by_the_profile_alone() -> None:
    assert verdict(profiled(OWN, TORCH), "cuda", **NO_TRITON) == (Integrity.CLEAN, [])
    assert verdict(profiled(TORCH), "cuda", **NO_TRITON) == (Integrity.REJECTED, ["A1"])
    assert verdict(profiled(TORCH), "any", **NO_TRITON) == (Integrity.CLEAN, [])
    assert verdict(None, "cuda", **NO_TRITON) == (Integrity.UNKNOWN, ["A1"])
    assert verdict(None, "cuda") == (Integrity.CLEAN, [])


def test_kernels_of_the_other_mode_only() -> None:
    modes = {"train": ModeCall(on_device=("scale(float*)",)), "eval": ModeCall(on_device=())}
    assert verdict(profiled(TORCH), "cuda", **NO_TRITON, modes=modes) == (Integrity.REJECTED, ["A9"])


def test_counted_launches_without_time_on_the_device() -> None:
    assert verdict(profiled(TORCH)) == (Integrity.REJECTED, ["A7"])
    assert verdict(profiled(TORCH, kernel("compiler", 20.0))) == (Integrity.REJECTED, ["A7", "A22"])


def test_the_compiler_wrote_more_than_the_candidate() -> None:
    assert verdict(profiled(OWN, kernel("compiler", 61.0))) == (Integrity.SUSPICIOUS, ["A22"])
    assert verdict(profiled(OWN, kernel("compiler", 59.0))) == (Integrity.CLEAN, [])
    assert verdict(profiled(OWN, kernel("compiler", 61.0)), "any") == (Integrity.CLEAN, [])


@pytest.mark.parametrize(
    ("more", "code"),
    [({}, "A21"), ({"operator": "aten::mm"}, ""), ({"graph": True}, "")],
    ids=["by itself", "through torch", "in a graph"],
)
def test_a_library_past_torch(more: dict[str, Any], code: str) -> None:
    assert verdict(profiled(OWN, kernel("library", 20.0, **more)))[1] == [code] * bool(code)
    assert verdict(profiled(OWN, kernel("library", 5.0, **more))) == (Integrity.CLEAN, [])


def test_next_to_no_time_is_decoration_where_nobody_can_leave_it_out() -> None:
    little = profiled(kernel("candidate", 9.0), kernel("torch", 91.0))
    assert verdict(little) == (Integrity.CLEAN, [])
    assert verdict(little, probes=NOT_LEFT_OUT) == (Integrity.SUSPICIOUS, ["A5"])
    assert verdict(little, "cuda", **NO_TRITON) == (Integrity.SUSPICIOUS, ["A5"])
    enough = profiled(kernel("candidate", 10.0), kernel("torch", 90.0))
    assert verdict(enough, probes=NOT_LEFT_OUT) == (Integrity.CLEAN, [])


def test_work_before_the_clock_starts() -> None:
    assert verdict(profiled(OWN, early_us=19.0, busy_us=60.0)) == (Integrity.CLEAN, [])
    assert verdict(profiled(OWN, early_us=50.0, busy_us=60.0)) == (Integrity.REJECTED, ["D1"])
    assert verdict(profiled(OWN, early_us=50.0, busy_us=510.0))[1] == []


def test_more_work_than_was_timed() -> None:
    """The timing of these facts claims 500 us a call."""
    assert verdict(profiled(OWN, busy_us=640.0)) == (Integrity.CLEAN, [])
    assert verdict(profiled(OWN, busy_us=650.0)) == (Integrity.SUSPICIOUS, ["D10"])
    assert verdict(profiled(OWN, busy_us=650.0, streams=2)) == (Integrity.SUSPICIOUS, ["D1"])


@pytest.mark.parametrize("device", ["cpu", "cpu:1"])
def test_an_interpreted_call_takes_no_two_times_the_same(device: str) -> None:
    evaluation = an_evaluation(
        speedup=2.0,
        profile=profiled(OWN, busy_us=5000.0),
        protocol=Protocol(),
        observations=observed(clock_ms=0.1),
    )
    there = evaluation.environment.model_copy(update={"device": device})
    assert rules.judge(evaluation).integrity is Integrity.SUSPICIOUS
    assert rules.judge(evaluation.model_copy(update={"environment": there})).integrity is Integrity.CLEAN


def test_a_recording_that_is_not_whole_is_unknown_and_says_why() -> None:
    broken = profiled(OWN).model_copy(update={"profile_ratio": None, "fault": "2 launches are missing"})
    assert verdict(broken) == (Integrity.UNKNOWN, ["E13"])
    evaluation = an_evaluation(profile=broken, protocol=Protocol(), observations=observed())
    assert [item.detail for item in rules.missing(evaluation) if item.code == "E13"] == ["2 launches are missing"]


def test_kernels_that_are_compiled_while_timed_are_noted() -> None:
    assert verdict(profiled(OWN), compiled_calls=2) == (Integrity.CLEAN, ["A16"])


@pytest.mark.parametrize(("unreplaced", "codes"), [(None, []), (0.0, []), (0.5, []), (0.51, ["A6"]), (1.0, ["A6"])])
def test_what_the_reference_has_torch_do_must_be_done_otherwise(unreplaced: float | None, codes: list[str]) -> None:
    integrity = Integrity.SUSPICIOUS if codes else Integrity.CLEAN
    assert verdict(profiled(OWN, TORCH, unreplaced=unreplaced)) == (integrity, codes)
    assert verdict(profiled(OWN, TORCH, unreplaced=unreplaced), "any") == (Integrity.CLEAN, [])
