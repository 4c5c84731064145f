"""Presets, files and flags become one configuration."""

from pathlib import Path

import pytest

from drkernel_q.errors import BadSettings
from drkernel_q.value import Value
from policy.config import differences, load_config, presets


class Inner(Value):
    rate: float = 0.1
    name: str = "adam"


class Outer(Value):
    inner: Inner = Inner()
    turns: int = 3


def test_later_sources_win_and_leave_their_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("turns = 4\n[inner]\nrate = 0.2\n")
    config = load_config(Outer, "none", file=file, overrides=["inner.name=sgd"], flags={"turns": 5, "inner.rate": None})
    assert config == Outer(inner=Inner(rate=0.2, name="sgd"), turns=5)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("inner.rat=1", "did you mean `inner.rate`"),
        ("turns=many", "`turns` is wrong"),
        ("turns", "KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_named(override: str, said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        load_config(Outer, "none", overrides=[override])


def test_a_wrong_file_or_preset_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("turns = = 1")
    for file in (broken, tmp_path / "missing.toml"):
        with pytest.raises(BadSettings, match=file.name):
            load_config(Outer, "none", file=file)
    with pytest.raises(BadSettings, match="no preset `huge`"):
        load_config(Outer, "none", preset="huge")
    assert presets("none") == []


def test_what_differs_is_listed_by_key_and_nothing_else() -> None:
    before = {"a": {"b": [1, 2], "c": None, "d": 1}, "free": {"x": 1}, "gone": 3}
    now = {"a": {"b": (1, 2), "d": 2}, "free": {"x": 2}, "freedom": 4}
    assert differences(before, now, ("free",)) == [("a.d", 1, 2), ("freedom", None, 4), ("gone", 3, None)]
