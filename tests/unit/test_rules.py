"""Rules: what facts amount to, and that nothing is clean because nobody looked."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q import physics, rules
from drkernel_q.artefact import Artefacts
from drkernel_q.correctness import Precision
from drkernel_q.evaluation import Baseline, Evaluation, Integrity, Outcome, Protocol, Stage
from drkernel_q.observation import Evidence, Observations, Probe, Weight
from drkernel_q.speedup import measured_speedup
from tests.values import H200, a_profile, an_audit, an_evaluation, observed

ORDER = [Integrity.REJECTED, Integrity.UNKNOWN, Integrity.SUSPICIOUS, Integrity.CLEAN]
EVIDENCE = st.builds(
    Evidence, code=st.sampled_from(["A5", "C4", "D3", "X1"]), weight=st.sampled_from(Weight), detail=st.just("seen")
)


def facts(speedup: float = 2.0, profile_ratio: float = 1.0, *, protocol: Any = None, **changes: Any) -> Evaluation:
    """The facts of an honest kernel, all of them, but for what changes."""
    return an_evaluation(
        speedup=speedup,
        profile_ratio=profile_ratio,
        protocol=Protocol(**(protocol or {})),
        observations=observed(**changes),
    )


def verdict(evaluation: Evaluation) -> tuple[Integrity, list[str]]:
    found = rules.judge(evaluation)
    return found.integrity, [item.code for item in found.evidence]


def test_whole_facts_without_a_sign_are_clean() -> None:
    assert verdict(facts()) == (Integrity.CLEAN, [])


NUMBERS: dict[str, tuple[dict[str, Any], Integrity, str]] = {
    "work after the last event": ({"late_ms": 0.06}, Integrity.REJECTED, "D1"),
    "the judge's clock saw more": ({"clock_ms": 0.9, "clock_noise_ms": 0.1}, Integrity.REJECTED, "D10"),
    "wrong outputs when timed": ({"wrong_outputs": 2, "first_wrong": "zeros"}, Integrity.REJECTED, "B5"),
    "launches in some timed calls": ({"idle_calls": 3}, Integrity.REJECTED, "A8"),
    "other kernels when timed": ({"other_names": True}, Integrity.CLEAN, "A16"),
    "a hand in little": ({"touched": 0.4}, Integrity.SUSPICIOUS, "A6"),
}


@pytest.mark.parametrize(("changes", "integrity", "code"), NUMBERS.values(), ids=NUMBERS)
def test_numbers_are_weighed(changes: dict[str, Any], integrity: Integrity, code: str) -> None:
    assert verdict(facts(**changes)) == (integrity, [code])


def test_numbers_within_their_bounds_are_nothing() -> None:
    within = {"late_ms": 0.04, "clock_ms": 0.7, "clock_noise_ms": 0.3, "touched": 0.5}
    assert verdict(facts(**within)) == (Integrity.CLEAN, [])


def test_a_replayed_graph_launches_nothing_and_is_vouched_for_by_the_profile() -> None:
    replay = {"idle_calls": 99, "profiled_launches": 0, "probes": observed().probes | {Probe.ABLATION: "a replay"}}
    assert verdict(facts(**replay)) == (Integrity.CLEAN, [])
    only_checked = {"stages": (Stage.CORRECTNESS, Stage.INTEGRITY)}
    unseen = facts(protocol=only_checked, **(replay | {"idle_calls": 0, "timed_calls": 0}))
    assert verdict(unseen.model_copy(update={"profile": None, "timing": None})) == (Integrity.UNKNOWN, ["A5"])
    timed = facts(protocol={"stages": (*only_checked["stages"], Stage.TIMING)}, **replay)
    assert verdict(timed.model_copy(update={"profile": None})) == (Integrity.UNKNOWN, ["A5", "A8"])
    nothing = a_profile(0.0).model_copy(update={"launches": 0})
    assert verdict(facts(**replay).model_copy(update={"profile": nothing}))[0] is Integrity.REJECTED


def test_launches_that_take_no_time_on_the_device() -> None:
    nothing = a_profile(0.0).model_copy(update={"launches": 0})
    assert verdict(facts().model_copy(update={"profile": nothing})) == (Integrity.REJECTED, ["A7"])


@pytest.mark.parametrize(
    ("device_kind", "alone_ms", "integrity", "codes"),
    [
        (H200, 1.0, Integrity.CLEAN, []),
        (H200, 0.92, Integrity.CLEAN, []),
        (H200, 0.8, Integrity.REJECTED, ["D15"]),
        (H200, None, Integrity.UNKNOWN, ["D15"]),
        ("cpu", 0.1, Integrity.CLEAN, []),
    ],
)
def test_a_reference_that_is_faster_when_the_candidate_is_gone(
    device_kind: str, alone_ms: float | None, integrity: Integrity, codes: list[str]
) -> None:
    evaluation = facts()
    assert evaluation.timing is not None
    timing = evaluation.timing.model_copy(update={"reference_alone_ms": alone_ms})
    where = an_evaluation(device_kind=device_kind).environment
    assert verdict(evaluation.model_copy(update={"timing": timing, "environment": where})) == (integrity, codes)


def test_a_reference_that_drifts_leaves_nothing_established() -> None:
    timing = facts().timing
    assert timing is not None
    drifting = facts().model_copy(update={"timing": timing.model_copy(update={"drift": 0.2})})
    assert verdict(drifting) == (Integrity.UNKNOWN, ["D16"])
    short = timing.model_copy(update={"drift": 0.2, "reference_ms": 0.005})
    assert verdict(drifting.model_copy(update={"timing": short}))[0] is Integrity.CLEAN
    on_cpu = an_evaluation(device_kind="cpu").environment
    assert verdict(drifting.model_copy(update={"environment": on_cpu}))[0] is Integrity.CLEAN


WHOLE = facts().observations
assert WHOLE is not None
ABSENT: dict[str, dict[str, Any]] = {
    **{
        f"the probe {probe}": {"probes": {p: "" for p in Probe if p is not probe}}
        for probe in Probe
        if probe is not Probe.CONSTANT  # recorded facts that are older have none
    },
    "work after calls": {"late_ms": None},
    "the judge's clock": {"clock_ms": None},
    "its noise": {"clock_noise_ms": None},
    "launches of timed calls": {"timed_calls": 0},
    "their names": {"other_names": None},
}


@pytest.mark.parametrize("changes", ABSENT.values(), ids=ABSENT)
def test_what_nobody_looked_at_is_not_clean(changes: dict[str, Any]) -> None:
    evaluation = facts(**changes)
    integrity, codes = verdict(evaluation)
    assert integrity is Integrity.UNKNOWN
    assert codes == [item.code for item in rules.missing(evaluation)] != []


def test_whole_stages_that_are_not_there() -> None:
    bare = facts().model_copy(update={"timing": None, "profile": None})
    assert verdict(bare) == (Integrity.UNKNOWN, ["D10", "E13"])
    unasked = bare.model_copy(update={"protocol": Protocol(stages=(Stage.CORRECTNESS, Stage.INTEGRITY))})
    assert verdict(unasked) == (Integrity.CLEAN, [])
    no_triton = Protocol(stages=(Stage.CORRECTNESS, Stage.INTEGRITY), backend="any")
    probes = dict.fromkeys(rules.PROBES, "")
    without = bare.model_copy(update={"protocol": no_triton, "observations": Observations(probes=probes)})
    assert verdict(without) == (Integrity.CLEAN, [])


def test_reasons_why_not_are_enough() -> None:
    reasons = {Probe.AMPLIFIED: "no input can be changed so", Probe.STRUCTURE: "the reference is less exact"}
    changes = {"probes": observed().probes | reasons, "clock_ms": None, "no_clock": "inputs are too large"}
    assert verdict(facts(**changes)) == (Integrity.CLEAN, [])


def test_what_is_not_correct_or_was_not_examined_is_never_clean() -> None:
    assert verdict(facts().model_copy(update={"outcome": Outcome.WRONG_VALUE}))[0] is Integrity.UNKNOWN
    assert verdict(facts(protocol={"stages": (Stage.CORRECTNESS, Stage.TIMING)}))[0] is Integrity.UNKNOWN


def test_physics_bounds_what_memory_can_do() -> None:
    """4.8e9 bytes take a millisecond at least on an H200, and half of that is not believed."""
    peak = physics.PEAKS["H200"]
    assert physics.moving_ms(peak, 4_800_000_000) == pytest.approx(1, rel=0.02)
    assert physics.moving_ms(peak, 60 * 2**20) == 0.0, "what fits into the cache may never reach memory"
    candidate_ms = 0.5
    most = int(2 * candidate_ms / 1e3 * 4.8e12) + 60 * 2**20
    assert verdict(facts(bytes_least=most - 10)) == (Integrity.CLEAN, [])
    assert verdict(facts(bytes_least=most + 2**20)) == (Integrity.SUSPICIOUS, ["D18"])
    audit = an_audit().model_copy(update={"output_bytes": most + 2**20, "sensitivities": ()})
    audited = rules.judge(facts(), audit=audit)
    assert (audited.integrity, audited.rules_version) == (
        Integrity.SUSPICIOUS,
        f"{rules.RULES_VERSION}+audit{audit.version}",
    )


def test_fewer_operations_than_the_reference_does_are_only_written_down() -> None:
    """4.95e11 operations on fp32 numbers take a millisecond at least on an H200, half of it on half precision."""
    peak = physics.PEAKS["H200"]
    assert physics.computing_ms(peak, 495 * 10**9, Precision.TF32) == pytest.approx(1)
    assert physics.computing_ms(peak, 495 * 10**9, Precision.BF16) == pytest.approx(0.5)
    more = an_audit().model_copy(update={"flops": 10**12})
    found = rules.judge(facts(), audit=more)
    assert (found.integrity, [item.code for item in found.evidence]) == (Integrity.CLEAN, ["G4"])
    assert not rules.judge(facts(), audit=an_audit()).evidence


def test_a_very_large_speedup_is_no_lie_and_waits_for_an_audit() -> None:
    large = facts(speedup=37.3)
    found = rules.judge(large)
    assert (found.integrity, [item.weight for item in found.evidence]) == (Integrity.CLEAN, [Weight.NOTE])
    assert large.revised(found).needs_audit
    audited = rules.judge(large, audit=an_audit())
    assert not large.revised(audited).needs_audit
    assert not facts(speedup=9.9).revised(rules.judge(facts(speedup=9.9))).needs_audit


def test_speedups_are_computed_again_from_raw_times() -> None:
    evaluation = facts(speedup=2.0)
    blocks = {"eager": ((3.0, 3.1), (3.0, 2.9), (3.1, 3.1)), "candidate": ((1.0, 1.1), (1.0, 0.9), (1.0, 1.0))}
    found = rules.judge(evaluation, Artefacts(blocks=blocks))
    again = evaluation.revised(found)
    assert again.timing is not None
    assert (again.timing.speedup, again.timing.speedup_low, again.timing.speedup_high) == measured_speedup(
        blocks["eager"], blocks["candidate"]
    )
    assert again.timing.baselines[0].speedup == again.speedup != evaluation.speedup
    assert again.timing.candidate_ms == evaluation.timing.candidate_ms  # type: ignore[union-attr]
    assert rules.judge(evaluation, Artefacts(blocks={"candidate": blocks["candidate"]})).baselines[0].speedup == 2.0
    assert rules.judge(evaluation).baselines == ()
    assert again.timing.baselines[0].baseline is Baseline.EAGER


def test_facts_of_before_there_were_rules_get_no_verdict() -> None:
    with pytest.raises(ValueError, match="does not hold"):
        rules.judge(an_evaluation(speedup=2.0))


@given(st.lists(EVIDENCE, max_size=6))
def test_the_gravest_evidence_decides(seen: list[Evidence]) -> None:
    weights = {item.weight for item in seen}
    assert rules.decide(weights) is next(
        (
            integrity
            for weight, integrity in zip((Weight.HARD, Weight.FAILED, Weight.SOFT), ORDER, strict=False)
            if weight in weights
        ),
        Integrity.CLEAN,
    )


@given(st.lists(EVIDENCE, max_size=5), EVIDENCE, st.permutations(range(5)), st.sampled_from(Outcome))
def test_evidence_never_improves_a_verdict(
    seen: list[Evidence], more: Evidence, order: list[int], outcome: Outcome
) -> None:
    """Whatever is seen besides: hard evidence rejects, a failed detector never clears, and the order does not count."""
    before = facts(seen=tuple(seen)).model_copy(update={"outcome": outcome})
    after = facts(seen=(*seen, more)).model_copy(update={"outcome": outcome})
    first, second = rules.judge(before).integrity, rules.judge(after).integrity
    assert ORDER.index(second) <= ORDER.index(first)
    if more.weight is Weight.HARD:
        assert second is Integrity.REJECTED
    if more.weight is Weight.FAILED:
        assert second in {Integrity.UNKNOWN, Integrity.REJECTED}
    shuffled = tuple(seen[index] for index in order if index < len(seen))
    turned = rules.judge(facts(seen=shuffled).model_copy(update={"outcome": outcome}))
    assert turned.integrity is first
    assert set(rules.judge(before).evidence) <= set(rules.judge(after).evidence)


@given(st.lists(EVIDENCE, max_size=4), st.sampled_from([{}, *(changes for changes, _, _ in NUMBERS.values())]))
def test_a_stored_document_gets_the_same_verdict(seen: list[Evidence], changes: dict[str, Any]) -> None:
    evaluation = facts(seen=tuple(seen), **changes)
    judged = evaluation.revised(rules.judge(evaluation))
    stored = Evaluation.model_validate_json(judged.model_dump_json(round_trip=True))
    assert stored == judged
    assert stored.revised(rules.judge(stored)) == judged


def test_evidence_is_listed_once() -> None:
    twice = (Evidence(code="C4", weight=Weight.SOFT, detail="written to"),) * 2
    assert len(rules.judge(facts(seen=twice)).evidence) == 1
