"""`drkq problem` from the outside."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from drkernel_q.cli import drkq
from drkernel_q.problem import builtin_files, find_problem
from drkernel_q.settings import load_settings

REFERENCE = '"""Twice."""\nsize = 8\nCPU_SIZES = {"size": 2}\nclass Model: ...\ndef get_inputs(): ...\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("DRKQ_DATA_DIR", str(tmp_path / "data"))
    return lambda *words: CliRunner().invoke(drkq, ["problem", *map(str, words)])


def write(path: Path, text: str = REFERENCE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_list_names_what_there_is(run: Callable[..., Result], tmp_path: Path) -> None:
    write(tmp_path / "kb" / "KernelBench" / "level2" / "7_Chain.py")
    run("add", write(tmp_path / "twice.py"))
    result = run("list", "--json", "--kernelbench", tmp_path / "kb")
    assert result.exit_code == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["twice"] == {"name": "twice", "level": None, "origin": "added", "summary": "Twice."}
    assert rows["2/7_Chain"] == {
        "name": "2/7_Chain",
        "level": 2,
        "origin": "KernelBench",
        "summary": "Twice.",
    }
    assert rows["softmax"]["level"] == 1
    assert set(builtin_files()) < set(rows)
    table = run("list").stdout
    assert "softmax" in table
    assert "7_Chain" not in table


def test_list_shows_a_broken_file_and_the_others(run: Callable[..., Result], tmp_path: Path) -> None:
    write(tmp_path / "data" / "problems" / "broken.py", "class Model(:")
    result = run("list", "--json")
    rows = {row["name"]: row["summary"] for row in json.loads(result.stdout)}
    assert rows["broken"].startswith("unusable: ")
    assert "softmax" in rows


def test_show_prints_the_source_byte_for_byte(run: Callable[..., Result]) -> None:
    result = run("show", "softmax")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == builtin_files()["softmax"].read_text()


def test_show_resizes(run: Callable[..., Result], tmp_path: Path) -> None:
    path = write(tmp_path / "twice.py")
    result = run("show", path, "--set", "size=2*2")
    assert result.stdout == REFERENCE.replace("size = 8", "size = 4").replace('"size": 2', '"size": 4')
    document = json.loads(run("show", path, "--json", "--set", "size=5").stdout)
    assert document["constants"] == {"size": 5}
    assert document["cpu_sizes"] == {"size": 5}
    assert document["hash"].startswith("b2:")
    assert document["name"] == "twice"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["softmxa"], "did you mean `softmax`?"),
        (["1/23"], "DRKQ_KERNELBENCH"),
        (["softmax", "--set", "rows=1"], "it has batch_size, features."),
        (["softmax", "--set", "batch_size"], "is not NAME=VALUE"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_65(
    run: Callable[..., Result], words: list[str], complaint: str
) -> None:
    result = run("show", *words)
    assert result.exit_code == 65
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_add_keeps_a_copy_that_has_a_name(run: Callable[..., Result], tmp_path: Path) -> None:
    path = write(tmp_path / "twice.py", "\ufeff" + REFERENCE)
    assert run("add", path).exit_code == 0
    path.unlink()
    assert find_problem("twice", load_settings()).source == REFERENCE
    assert [file.name for file in (tmp_path / "data" / "problems").iterdir()] == ["twice.py"]


def test_add_replaces_another_file_only_by_force(run: Callable[..., Result], tmp_path: Path) -> None:
    path = write(tmp_path / "twice.py")
    assert run("add", path).exit_code == 0
    assert run("add", path).exit_code == 0, "the same content again is no conflict"
    other = write(path, REFERENCE + "# other\n")
    result = run("add", other)
    assert (result.exit_code, "--force" in result.stderr) == (65, True)
    assert find_problem("twice", load_settings()).source == REFERENCE
    assert run("add", "--force", other).exit_code == 0
    assert find_problem("twice", load_settings()).source == REFERENCE + "# other\n"


@pytest.mark.parametrize("bad", ["nothing.py", "broken.py", "_hidden.py", "other/good.py"])
def test_add_keeps_all_or_nothing(run: Callable[..., Result], tmp_path: Path, bad: str) -> None:
    good = write(tmp_path / "good.py")
    write(tmp_path / "broken.py", "class Model(:")
    write(tmp_path / "_hidden.py")
    write(tmp_path / "other" / "good.py", REFERENCE + "# other\n")
    result = run("add", good, tmp_path / bad)
    assert result.exit_code == 65
    assert not (tmp_path / "data").exists()


def test_add_takes_a_folder(run: Callable[..., Result], tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / "set" / f"{name}.py", f"# {name}\n{REFERENCE}")
    assert run("add", tmp_path / "set").exit_code == 0
    assert find_problem("two", load_settings()).source.startswith("# two\n")


def test_a_data_folder_that_cannot_be_written_is_a_setting(run: Callable[..., Result], tmp_path: Path) -> None:
    write(tmp_path / "data", "a file in the way")
    result = run("add", write(tmp_path / "twice.py"))
    assert result.exit_code == 78
    assert "data_dir" in result.stderr
