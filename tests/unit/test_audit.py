"""Flags of a problem: pure functions of an audit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.audit import COMPILE_MUCH_FASTER, GATES, Audit, Flag, FlagCode, Sensitivity, speed_rewarded
from tests.need import ROOT
from tests.values import an_audit


def a_tensor(name: str = "input 0", kind: Any = "input", **facts: Any) -> Sensitivity:
    return Sensitivity(name=name, kind=kind, **({"size_bytes": 1000, "constant": False} | facts))


def codes(audit: Audit) -> list[str]:
    return [flag.code.value for flag in audit.flags]


def test_a_sound_problem_has_no_flag() -> None:
    audit = an_audit()
    assert codes(audit) == []
    assert audit.speed_rewarded
    assert audit.bytes_least == 4096 + 1024 + 4096


@pytest.mark.parametrize(
    ("facts", "code", "rewarded"),
    [
        ({"unusable": "get_inputs() of x raises ValueError: no"}, "unusable", False),
        ({"zeros_pass": None}, "unchecked", False),
        ({"repeatable": None}, "unchecked", False),
        ({"zeros_pass": True}, "degenerate", False),
        ({"constant_passes": True}, "constant_output", False),
        ({"other_passes": True}, "constant_output", False),
        ({"repeatable": False}, "random_forward", False),
        ({"reference_ms": 0.0199}, "launch_bound", True),
        ({"reference_ms": 100.1}, "slow_reference", True),
        ({"compile_ms": 0.99 / COMPILE_MUCH_FASTER}, "compile_much_faster", True),
        ({"deterministic": False}, "nondeterministic", True),
        ({"train_differs": True}, "train_eval_differ", True),
        ({"finite": False}, "not_finite", True),
        ({"relative_l2": None, "gaps": {"fp64": "no fp64"}}, "fp64_unavailable", True),
        ({"sensitivities": (a_tensor(redraw=False), a_tensor("input 1", scale=True))}, "input_insensitive", True),
        ({"sensitivities": (a_tensor("bias", "parameter", scale=False),)}, "weight_insensitive", True),
        ({"sensitivities": (a_tensor("bias", "buffer", scale=True, constant=True),)}, "weight_constant", True),
    ],
)
def test_each_fact_raises_its_flag(facts: dict[str, Any], code: str, rewarded: bool) -> None:
    audit = an_audit(**facts)
    assert codes(audit) == [code]
    assert audit.speed_rewarded is rewarded


def test_a_problem_whose_inputs_do_not_matter_is_constant() -> None:
    audit = an_audit(sensitivities=(a_tensor(redraw=False), a_tensor("input 1", redraw=False, row=False)))
    assert codes(audit) == ["constant_output", "input_insensitive"]
    assert audit.flags[1].detail == "input 0, input 1"
    assert not audit.speed_rewarded


def test_what_was_not_tried_raises_nothing() -> None:
    audit = an_audit(sensitivities=(a_tensor(), a_tensor("bias", "parameter")), train_differs=None, compile_ms=None)
    assert codes(audit) == []


def test_times_of_the_interpreter_raise_nothing() -> None:
    assert codes(an_audit("cpu", reference_ms=0.001)) == codes(an_audit("cpu", reference_ms=1e4)) == []


@given(st.sets(st.sampled_from(list(FlagCode))))
def test_only_gates_gate(present: set[FlagCode]) -> None:
    flags = [Flag(code=code, detail="seen") for code in present]
    assert speed_rewarded(flags) is not bool(present & GATES)


@given(
    size=st.integers(0, 10**12),
    share=st.none() | st.floats(0, 1),
    nonzero=st.floats(0, 1),
    outputs=st.integers(0, 10**12),
)
def test_least_bytes_count_what_is_proved_and_no_more(
    size: int, share: float | None, nonzero: float, outputs: int
) -> None:
    tensor = a_tensor(size_bytes=size, read_share=share, nonzero_share=nonzero, redraw=True)
    least = an_audit(sensitivities=(tensor,), output_bytes=outputs).bytes_least
    assert least is not None
    assert outputs <= least <= outputs + size
    if share is None:
        assert least == outputs


def test_an_audit_survives_its_journey() -> None:
    audit = an_audit(zeros_pass=True)
    assert Audit.model_validate_json(audit.model_dump_json(round_trip=True)) == audit
    assert audit.model_dump(mode="json")["flags"] == [{"code": "degenerate", "detail": "zeros would pass"}]


def test_every_flag_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/audit.md").read_text(encoding="utf-8")
    table = [line.split("|") for line in page.split("## Facts")[0].splitlines() if line.startswith("| `")]
    rows = {cells[1].strip(" `"): cells[-2].strip() for cells in table}
    assert rows == {code.value: "no" if code in GATES else "yes" for code in FlagCode}
    facts = set(Audit.model_fields) | set(Audit.model_computed_fields) | set(Sensitivity.model_fields)
    assert [name for name in sorted(facts) if name not in page] == []
