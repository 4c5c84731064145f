"""The report: one page without scripts or network, whatever a kernel's source says."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from drkernel_q.cli import drkq
from drkernel_q.kernel import Kernel
from drkernel_q.report.chart import Bar, bars, lines
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
    record.write_text('{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": 0.7}\n{"step": 3, "rew')
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
    assert names == {
        "fast-p-by-turn",
        "fast-p-best-so-far",
        "hacks-and-laziness-by-step",
        "device-time-of-the-laziest-and-of-the-least-lazy-kernel",
        "reward",
    }
    for file in (folder / "figures").iterdir():
        assert ET.fromstring(file.read_text()).tag.endswith("svg")


def test_a_training_run_may_lie_elsewhere(folder: Path) -> None:
    elsewhere = folder / "mine"
    (folder / "runs/mine").rename(elsewhere)
    path = folder / "report.html"
    for named, has_curves in ((str(elsewhere), True), ("mine", False)):
        result = CliRunner().invoke(drkq, ["report", named, "-o", str(path)])
        assert result.exit_code == 0, result.stderr
        assert ("<figcaption>Reward</figcaption>" in path.read_text()) is has_curves


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
    root = ET.fromstring(bars("T", {"lazy": [Bar("<aten>", 90.0, own=False), Bar("mine", 10.0, own=True)]}))
    widths = [float(each.attrib["width"]) for each in root.iter() if each.tag.endswith("rect")]
    assert widths[0] / widths[1] == pytest.approx(9, rel=0.05)
