"""The report: one page without scripts or network, whatever a kernel's source says."""

import re
import xml.etree.ElementTree as ET
from html import escape
from pathlib import Path

import pytest
from click.testing import CliRunner

from drkernel_q.cli import drkq
from drkernel_q.kernel import Kernel
from drkernel_q.report.chart import Bar, bars, lines, standalone
from drkernel_q.report.search import curves
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.trajectory import Trajectory, Turn
from tests.values import SOFTMAX, an_evaluation

HOSTILE = "x = '</pre><script>alert(1)</script>'"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRKQ_DATA_DIR", str(tmp_path))
    evaluations = (
        an_evaluation(speedup=0.9, profile_ratio=0.1),
        an_evaluation("correct", "rejected"),
        an_evaluation(speedup=1.7, profile_ratio=0.9),
    )
    turns = tuple(
        Turn(
            number=number, prompt=(), completion="", kernel=Kernel(source=f"{HOSTILE} {number}"), evaluation=each,
            policy_version=number,
        )
        for number, each in enumerate(evaluations, start=1)
    )  # fmt: skip
    with Store.open(load_settings().store) as store:
        store.upgrade()
        store.add_problem(SOFTMAX)
        store.add_trajectory("mine", Trajectory(problem_hash=SOFTMAX.hash, turns=turns))
    record = tmp_path / "runs/mine/metrics.jsonl"
    record.parent.mkdir(parents=True)
    lines = [f'{{"step": {step}, "reward/mean": 0.5, "fast_1/turn_1": 0.1, "fast_1/turn_3": 0.2}}\n' for step in (1, 2)]
    record.write_text("".join(lines) + '{"step": 3, "rew')
    return tmp_path


def test_the_page_is_whole_and_needs_nothing(folder: Path) -> None:
    path = folder / "report.html"
    result = CliRunner().invoke(drkq, ["report", "mine", "-o", str(path), "--figures", str(folder / "figures")])
    assert result.exit_code == 0, result.stderr
    text = path.read_text()
    assert not re.search(r"<script|<link|<img|url\(|src=", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"] * text.count("<svg")
    assert "3 kernels evaluated, 2 honest and correct, 33.3% rejected, 50.0% of the honest lazy." in text
    assert "softmax: 1.70x [1.53, 1.87] on sm_90/NVIDIA H200" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "prefers-color-scheme:dark" in text
    names = {file.stem for file in (folder / "figures").iterdir()}
    # The run is over in a moment, so that there may or may not be a course of time.
    assert names - {"devices-and-queue-over-time"} == {
        "fast-p-by-turn",
        "fast-p-best-so-far",
        "fast-p-by-step",
        "hacks-and-laziness-by-step",
        "hacks-and-laziness-over-time",
        "evidence-by-step-share-of-evaluations",
        "the-laziest-and-the-least-lazy-honest-kernel-by-device-time",
        "evaluations-by-time",
        "reward",
    }
    for file in (folder / "figures").iterdir():
        assert ET.fromstring(file.read_text()).tag.endswith("svg")
        assert "var(" not in file.read_text()


def test_it_shows_what_was_changed_and_what_was_seen(folder: Path) -> None:
    text = _report(folder, "mine")
    assert f"<ins>+{escape(HOSTILE)} 3</ins>" in text
    assert f"<del>-{escape(HOSTILE)} 2</del>" in text
    assert "softmax: 1.70x [1.53, 1.87] on sm_90/NVIDIA H200, turn 3 of trajectory 1" in text
    assert "A4 (hard), softmax: correct" in text
    assert "softmax: 10.00% of the device time its own, 0.90x" in text


@pytest.mark.slow
def test_pixels(folder: Path) -> None:
    figures = folder / "figures"
    _report(folder, "mine", "--figures", str(figures), "--format", "png")
    assert {file.suffix for file in figures.iterdir()} == {".png"}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in figures.iterdir())


def test_searches_side_by_side(folder: Path) -> None:
    """Runs that are named, and a whole store: its file, or that of the settings."""
    file = load_settings().store.removeprefix("sqlite:///")
    with Store.open(load_settings().store) as store:
        for strategy in ("context", "vanilla"):
            store.add_run(f"search {strategy}", kind="stts", settings={"scaling": {"strategy": strategy}})
            turns = tuple(
                Turn(
                    number=n,
                    prompt=(),
                    completion="",
                    kernel=Kernel(source=f"{n}"),
                    evaluation=an_evaluation(speedup=n),
                )
                for n in (1, 2)
            )
            store.add_trajectory(f"search {strategy}", Trajectory(problem_hash=SOFTMAX.hash, turns=turns))
    both = _report(folder, "search context", "search vanilla")
    for text in (both, _report(folder, file), _report(folder)):
        assert "context, last turn" in text
        assert "vanilla, best so far" in text
        assert 'href="#run-search-20-context"' in text
        assert 'id="run-search-20-context"' in text
    assert ">mine<" not in both
    result = CliRunner().invoke(drkq, ["report", file, "mine"])
    assert (result.exit_code, "not both" in result.stderr) == (65, True)


def _report(folder: Path, *arguments: str) -> str:
    path = folder / "report.html"
    result = CliRunner().invoke(drkq, ["report", *arguments, "-o", str(path)])
    assert result.exit_code == 0, result.stderr
    return path.read_text()


def test_a_store_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_DATA_DIR", str(tmp_path))
    with Store.open(load_settings().store) as store:
        store.upgrade()
    result = CliRunner().invoke(drkq, ["report"])
    assert (result.exit_code, "no run" in result.stderr) == (65, True)


def test_curves_of_a_search() -> None:
    """Three chains: one that improves, one that fails and ends early, one that loses what it had."""
    drawn = curves([[0.5, 1.3], [None], [1.1, None]], [1.0])
    found = {(curve.measure, curve.of): dict(curve.points) for curve in drawn}
    assert found["Honest and correct", "last"] == {1: pytest.approx(2 / 3), 2: pytest.approx(1 / 3)}
    assert found["Honest and correct", "best"] == {1: pytest.approx(2 / 3), 2: pytest.approx(2 / 3)}
    assert found["Fast@1", "last"] == {1: pytest.approx(1 / 3), 2: pytest.approx(1 / 3)}
    assert found["Fast@1", "best"] == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3)}
    assert found["Speedup", "best"] == {1: 0.5, 2: 1.1}
    assert curves([], [1.0])[0].points == []


def test_a_training_run_may_lie_elsewhere(folder: Path) -> None:
    elsewhere = folder / "mine"
    (folder / "runs/mine").rename(elsewhere)
    path = folder / "report.html"
    for named, has_curves in ((str(elsewhere), True), ("mine", False)):
        result = CliRunner().invoke(drkq, ["report", named, "-o", str(path)])
        assert result.exit_code == 0, result.stderr
        assert ('aria-label="Reward"' in path.read_text()) is has_curves


def test_a_run_that_is_not_there(folder: Path) -> None:
    result = CliRunner().invoke(drkq, ["report", "nobody"])
    assert (result.exit_code, "no run named `nobody`" in result.stderr) == (65, True)


def test_points_lie_where_their_values_are() -> None:
    root = ET.fromstring(lines("T", "turn", {"a": [(1, 0.0), (2, 1.0), (3, 0.5)]}, percent=True))
    marks = [
        (float(each.attrib["cx"]), float(each.attrib["cy"])) for each in root.iter() if each.tag.endswith("circle")
    ]
    (left, low), (middle, high), (right, half) = marks
    assert middle - left == pytest.approx(right - middle)
    assert low - half == pytest.approx(half - high)
    assert lines("T", "turn", {"a": []}) == ""


def test_bars_are_shares() -> None:
    drawn = bars("T", {"lazy": [Bar("<aten>", 90.0, own=False), Bar("mine", 10.0, own=True)]})
    widths = [float(each.attrib["width"]) for each in ET.fromstring(drawn).iter() if each.tag.endswith("rect")]
    assert widths[0] / widths[1] == pytest.approx(9, rel=0.05)
    assert bars("T", {}) == ""


def test_many_small_kernels_are_one_bar() -> None:
    drawn = bars("T", {"k": [Bar(f"k{number}", 1.0, own=False) for number in range(30)]})
    assert "24 others: 80.0%, not its own" in drawn


def test_a_figure_alone_has_colours_of_its_own() -> None:
    plain = standalone(lines("T", "turn", {"a": [(1, 0.0)]}))
    assert "var(" not in plain
    assert "#0072b2" in plain
