"""The record of a run: what is whole is read, whatever happened to the file."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from drkernel_q import record


@given(cut=st.integers(min_value=0))
def test_a_file_that_was_cut_anywhere_keeps_its_whole_lines(tmp_path_factory: object, cut: int) -> None:
    text = "".join(f'{{"step": {step}, "loss": {step / 2}}}\n' for step in range(1, 6))
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"  # type: ignore[attr-defined]
    path.write_text(text[: cut % (len(text) + 1)])
    found = record.read(path)
    assert [line["step"] for line in found] == list(range(1, len(found) + 1))
    assert len(found) >= path.read_text().count("\n")
    kept = record.forget_after(path, 2)
    record.append(path, 3, {"loss": float("nan")})
    assert kept == found[:2]
    assert record.read(path) == [*kept, {"step": 3, "loss": None}]


def test_no_file_is_no_lines(tmp_path: Path) -> None:
    assert record.read(tmp_path / "metrics.jsonl") == []
