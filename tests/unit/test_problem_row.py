"""Rows of public data sets become problems, from Parquet files and from folders saved by `datasets`."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drkernel_q.errors import BadProblem
from drkernel_q.problem import find_problem, load_row, problem_from_row
from drkernel_q.settings import load_settings

MODEL = "class Model: ...\ndef get_inputs(): ...\n"
ADD = "class Add: ...\ndef get_inputs(): ...\n"


def kernelbench_row(number: int = 23, name: str = "23_Softmax", code: str = MODEL) -> dict[str, object]:
    return {"code": code, "level": 1, "name": name, "problem_id": number}


def training_row(uuid: object = "a-1", entry_point: str = "Add", code: str = ADD) -> dict[str, object]:
    return {
        "data_source": "somewhere",
        "prompt": [{"role": "user", "content": "..."}],
        "reward_model": {"ground_truth": code, "style": "rule"},
        "extra_info": {"entry_point": entry_point, "module_name": "Add", "uuid": uuid},
    }


def coldstart_row(uuid: int = 7, entry_point: str = "Add") -> dict[str, object]:
    return {"original_python_code": ADD, "entry_point": entry_point, "module_name": "Add", "uuid": uuid}


@pytest.mark.parametrize(
    ("row", "name", "source"),
    [
        (kernelbench_row(), "1/23_Softmax", MODEL),
        (kernelbench_row(3, "Softmax"), "1/3_Softmax", MODEL),
        (kernelbench_row(code="\ufeff" + MODEL), "1/23_Softmax", MODEL),
        (training_row(), "Add_a-1", f"{ADD}\n\nModel = Add\n"),
        (training_row(entry_point="Model", code=MODEL), "Add_a-1", MODEL),
        (
            {"reward_model": {"ground_truth": MODEL}, "extra_info": {"name": "Gelu", "level": None}},
            "Gelu",
            MODEL,
        ),
        (coldstart_row(), "Add_7", f"{ADD}\n\nModel = Add\n"),
        ({"code": MODEL}, "row", MODEL),
    ],
)
def test_public_schemas_are_understood(row: Mapping[str, object], name: str, source: str) -> None:
    problem = problem_from_row(row)
    assert (problem.name, problem.source) == (name, source)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"text": "x", "id": 1}, "no reference in .* its columns are text, id"),
        ({"code": None}, "no reference in"),
        ({"code": 5}, "no reference in"),
        ({"reward_model": "x", "extra_info": None}, "no reference in"),
        (kernelbench_row(code="class Model(:"), "1/23_Softmax, line 1: invalid syntax"),
        (training_row(entry_point="Sub"), "has no class `Sub`, which its entry point names"),
        # Such an entry point is never written into a source.
        (training_row(entry_point="Add\nimport os"), "has no class `Model`"),
        (training_row(entry_point="class"), "has no class `Model`"),
    ],
)
def test_a_row_that_is_no_problem_gets_one_sentence(row: Mapping[str, object], complaint: str) -> None:
    with pytest.raises(BadProblem, match=complaint):
        problem_from_row(row)


def parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def saved_dataset(folder: Path, rows: list[dict[str, object]]) -> Path:
    """A folder as `Dataset.save_to_disk` leaves it: streams of Arrow IPC in shards, and a stale cache."""
    folder.mkdir()
    for shard in range(2):
        table = pa.Table.from_pylist(rows[shard::2])
        with pa.ipc.new_stream(folder / f"data-0000{shard}-of-00002.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
    (folder / "cache-1234.arrow").write_bytes(b"stale")
    (folder / "state.json").write_text("{}")
    return folder


def test_a_row_is_found_by_number_or_uuid(tmp_path: Path) -> None:
    rows = [training_row(f"u-{number}", code=f"{ADD}# {number}") for number in range(5)]
    path = parquet(tmp_path / "rows.parquet", rows)
    for key, number in (("0", 0), ("3", 3), ("u-4", 4), ("uuid=u-2", 2)):
        assert f"# {number}\n" in load_row(path, key).source
        assert load_row(path, key).name == f"Add_u-{number}"


def test_a_numeric_uuid_is_found_by_its_name(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows.parquet", [coldstart_row(8), coldstart_row(1), coldstart_row(0)])
    assert load_row(path, "1").name == "Add_1"
    assert load_row(path, "0").name == "Add_8"
    assert load_row(path, "uuid=0").name == "Add_0"


def test_a_saved_dataset_is_read_shard_after_shard(tmp_path: Path) -> None:
    rows = [coldstart_row(10 + number) for number in range(5)]
    folder = saved_dataset(tmp_path / "saved", rows)
    names = [load_row(folder, str(number)).name for number in range(5)]
    assert names == ["Add_10", "Add_12", "Add_14", "Add_11", "Add_13"]
    assert load_row(folder, "uuid=13").name == "Add_13"
    assert load_row(folder / "data-00001-of-00002.arrow", "0").name == "Add_11"


def test_a_folder_of_parquet_files_is_read(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [kernelbench_row(1, "A")])
    parquet(tmp_path / "b.parquet", [kernelbench_row(2, "B")])
    assert load_row(tmp_path, "1").name == "1/2_B"


def test_a_row_is_named_as_people_type_it(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows.parquet", [kernelbench_row()])
    assert find_problem(f"{path}#0", load_settings()).name == "1/23_Softmax"
    with pytest.raises(BadProblem, match="holds many problems"):
        find_problem(str(path), load_settings())


def test_files_that_hold_no_such_row_are_said(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows.parquet", [kernelbench_row(), kernelbench_row(code="")])
    with pytest.raises(BadProblem, match=r"rows\.parquet has no row `2`"):
        load_row(path, "2")
    with pytest.raises(BadProblem, match="has no row `u-1`"):
        load_row(path, "u-1")
    with pytest.raises(BadProblem, match=r"rows\.parquet#1: The row has no reference"):
        load_row(path, "1")
    with pytest.raises(BadProblem, match=r"none\.parquet cannot be read"):
        load_row(tmp_path / "none.parquet", "0")
    for name in ("junk.parquet", "junk.arrow"):
        (tmp_path / name).write_bytes(b"junk" * 100)
        with pytest.raises(BadProblem, match="cannot be read as Parquet or Arrow"):
            load_row(tmp_path / name, "0")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadProblem, match=r"no data-\*\.arrow and no \.parquet"):
        load_row(tmp_path / "empty", "0")
