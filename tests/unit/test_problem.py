"""Problems found by name, by file and by folder; what is wrong with one is said in a sentence."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.errors import BadProblem
from drkernel_q.problem import (
    Problem,
    builtin_files,
    find_problem,
    load_folder,
    load_kernelbench,
    load_problem,
)
from drkernel_q.problem.source import MAX_PROBLEM_BYTES, check_source
from drkernel_q.settings import Settings, load_settings

REFERENCE = '''"""Twice the input."""
import torch.nn as nn

size = 8

class Model(nn.Module):
    def forward(self, x):
        return 2 * x

def get_inputs():
    return [size]
'''


def write(path: Path, text: str = REFERENCE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("1_Add", "2_Mul", "10_Max", "23_Softmax"):
        write(tmp_path / "kb" / "KernelBench" / "level1" / f"{name}.py", f"# {name}\n{REFERENCE}")
    write(tmp_path / "kb" / "KernelBench" / "level4" / "3_Big.py")
    return load_settings(data_dir=tmp_path / "data", kernelbench=tmp_path / "kb")


def test_a_file_becomes_a_problem_byte_for_byte(tmp_path: Path) -> None:
    text = REFERENCE.replace("\n", "\r\n") + "# ünïcode"
    problem = load_problem(write(tmp_path / "twice.py", text))
    assert problem == Problem(name="twice", source=text)
    assert problem.summary == "Twice the input."


def test_a_byte_order_mark_is_not_part_of_the_source(tmp_path: Path) -> None:
    assert load_problem(write(tmp_path / "bom.py", "\ufeff" + REFERENCE)).source == REFERENCE


def test_the_identity_is_the_content(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one.py"), write(tmp_path / "two.py")
    assert load_problem(one).hash == load_problem(two).hash
    assert load_problem(one).hash != load_problem(write(two, REFERENCE + "\n")).hash


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no class `Model`"),
        ("class Model:\n    pass\n", "has no function `get_inputs`"),
        ("class ModelNew:\n    pass\n", "is a kernel, not a reference"),
        ("def f():\n    class Model: ...\n    get_inputs = 1\n", "has no class `Model`"),
        ("Model: int\ndef get_inputs(): ...\n", "has no class `Model`"),
        ("x = 1\nclass Model(:\n    pass\n", ", line 2: invalid syntax"),
        ("x = 1\0", "null bytes"),
        ("(" * 100_000, "too many nested parentheses"),
        ("x = " + "-" * 200_000 + "1", "bad.py"),
        ("x = " + "+".join("1" * 100_000), "bad.py"),
        ("x" + ".x" * 200_000, "bad.py"),
        ("if 1:\n  pass\n" + "elif 1:\n  pass\n" * 5_000, "bad.py"),
        ("#" * (MAX_PROBLEM_BYTES + 1), f"has more than {MAX_PROBLEM_BYTES} bytes"),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path / "bad.py", text)
    with pytest.raises(BadProblem) as caught:
        load_problem(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 65


def test_a_file_that_cannot_be_read_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadProblem, match=r"no\.py cannot be read: No such file"):
        load_problem(tmp_path / "no.py")
    with pytest.raises(BadProblem, match="Is a directory"):
        load_problem(tmp_path)
    with pytest.raises(BadProblem, match="/dev/zero has more than"):
        load_problem(Path("/dev/zero"))
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9")
    with pytest.raises(BadProblem, match=r"latin\.py is not UTF-8 text \(byte 5\)"):
        load_problem(tmp_path / "latin.py")


@pytest.mark.parametrize(
    "text",
    [
        "from other import Model, get_inputs",
        "import a as Model, b as get_inputs",
        "Twice = object\nModel = Twice\nget_inputs = lambda: []",
        "try:\n  import fast\nexcept ImportError:\n  class Model: ...\nif True:\n  def get_inputs(): ...",
        "Model, (get_inputs, other) = 1, (2, 3)",
        "class Model: ...\nasync def get_inputs(): ...\npattern = '\\d'",
    ],
)
def test_any_way_to_bind_the_names_will_do(text: str) -> None:
    check_source(text, "text")


@given(st.text())
def test_any_text_at_all_is_taken_or_refused(text: str) -> None:
    for source in (text, REFERENCE + text):
        try:
            check_source(source, "text")
        except BadProblem:
            continue
        assert Problem(name="text", source=source).resized({}).source == source


def test_a_folder_is_sorted_as_people_count(settings: Settings) -> None:
    folder = Path(str(settings.kernelbench)) / "KernelBench" / "level1"
    write(folder / "__init__.py", "")
    names = [problem.name for problem in load_folder(folder)]
    assert names == ["1_Add", "2_Mul", "10_Max", "23_Softmax"]


def test_a_folder_without_problems_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadProblem, match=r"is no folder with \.py files"):
        load_folder(tmp_path)
    with pytest.raises(BadProblem, match=r"is no folder with \.py files"):
        load_folder(tmp_path / "none")


@pytest.mark.parametrize("spec", ["1/2", "1/2_Mul", "1/002"])
def test_kernelbench_goes_by_level_and_number(settings: Settings, spec: str) -> None:
    problem = find_problem(spec, settings)
    assert problem.name == "1/2_Mul"
    assert problem.source.startswith("# 2_Mul\n")


def test_kernelbench_may_be_named_by_its_inner_folder(settings: Settings) -> None:
    inner = Path(str(settings.kernelbench)) / "KernelBench"
    assert load_kernelbench(inner, "4/3").name == "4/3_Big"


def test_what_kernelbench_has_not_is_said(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(BadProblem, match="no problem 1/3 in"):
        find_problem("1/3", settings)
    with pytest.raises(BadProblem, match="no problem 1/2_Add in"):
        find_problem("1/2_Add", settings)
    with pytest.raises(BadProblem, match="give level and number"):
        load_kernelbench(tmp_path, "first")
    with pytest.raises(BadProblem, match="no checkout of KernelBench"):
        load_kernelbench(tmp_path / "nowhere", "1/1")
    with pytest.raises(BadProblem, match=r"DRKQ_KERNELBENCH.*--kernelbench"):
        find_problem("1/1", load_settings())


def test_names_find_builtin_and_added_problems(settings: Settings) -> None:
    assert find_problem("softmax", settings).source == builtin_files()["softmax"].read_text()
    write(settings.data_dir / "problems" / "softmax.py")
    assert find_problem("softmax", settings).source == REFERENCE
    assert find_problem("builtin:softmax", settings).source != REFERENCE


def test_paths_find_files(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "my.py")
    write(tmp_path / "odd#1.py")
    write(tmp_path / "reference")
    for spec in ("my.py", "./my.py", "~/my.py", str(tmp_path / "my.py"), "odd#1.py", "reference"):
        assert find_problem(spec, settings).source == REFERENCE


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("softmxa", r"did you mean `softmax`\?$"),
        ("quite something else", "`drkq problem list` shows"),
        ("", "`drkq problem list` shows"),
        ("no.py", r"no\.py cannot be read: No such file"),
        ("no/such", "no/such cannot be read: No such file"),
        ("/", "/ is a folder; name a file in it"),
        ("rows.parquet", r"name one by its row, such as 'rows\.parquet#0'"),
        ("rows.parquet#0", r"rows\.parquet cannot be read"),
        ("5/1", "5/1 cannot be read"),
    ],
)
def test_a_name_that_means_nothing_gets_one_sentence(settings: Settings, spec: str, complaint: str) -> None:
    with pytest.raises(BadProblem, match=complaint):
        find_problem(spec, settings)
