"""Problems in data sets: rows of Parquet files and of folders saved by `datasets`.

Public schemas that are understood:

* KernelBench on the Hub: `code`, `level`, `name`, `problem_id`
* drkernel RL and validation data: `reward_model.ground_truth`, `extra_info.{entry_point, module_name, uuid}`
* drkernel cold-start data: `original_python_code`, `entry_point`, `module_name`, `uuid`
"""

import keyword
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drkernel_q.errors import BadProblem
from drkernel_q.problem.reference import Problem
from drkernel_q.problem.source import check_source, module_names


def problem_from_row(row: Mapping[str, object]) -> Problem:
    """Make a problem of one row; a module class of another name is bound to `Model`.

    Raises:
        BadProblem: the row has no reference in a known column, or one that is no reference.
    """
    facts = {**_mapping(row.get("extra_info")), **row}
    sources = (
        _mapping(row.get("reward_model")).get("ground_truth"),
        row.get("original_python_code"),
        row.get("code"),
    )
    source = next((text for text in sources if isinstance(text, str) and text), None)
    if source is None:
        raise BadProblem(
            "The row has no reference in `reward_model.ground_truth`, `original_python_code` or `code`; "
            f"its columns are {', '.join(row)}."
        )
    name = _name(facts)
    source = _with_entry_point(source.removeprefix("\ufeff"), facts.get("entry_point"), name)
    check_source(source, name)
    return Problem(name=name, source=source)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _name(facts: Mapping[str, object]) -> str:
    title = facts.get("name") or facts.get("module_name") or facts.get("entry_point") or "row"
    if facts.get("level") is not None and facts.get("problem_id") is not None:
        number = f"{facts['problem_id']}_"
        return f"{facts['level']}/{str(title) if str(title).startswith(number) else number + str(title)}"
    uuid = facts.get("uuid")
    return str(title) if uuid is None else f"{title}_{uuid}"


def _with_entry_point(source: str, entry_point: object, where: str) -> str:
    if not isinstance(entry_point, str) or entry_point == "Model":
        return source
    if not entry_point.isidentifier() or keyword.iskeyword(entry_point):
        return source
    if entry_point not in module_names(source, where):
        raise BadProblem(f"{where} has no class `{entry_point}`, which its entry point names.")
    return f"{source}\n\nModel = {entry_point}\n"


def load_row(path: Path, key: str) -> Problem:
    """Load a row of a Parquet file, an Arrow file, or a folder of either.

    `key` is the row's number, counted from 0, or its uuid (`uuid=7` where uuids are numbers).

    Raises:
        BadProblem: there is no such file or row, or the row is no problem.
    """
    import pyarrow as pa

    try:
        row = _numbered(path, int(key)) if key.isdecimal() else _identified(path, key.removeprefix("uuid="))
    except (pa.ArrowException, OSError) as error:
        raise BadProblem(f"{path} cannot be read as Parquet or Arrow data: {error}.") from None
    if row is None:
        raise BadProblem(f"{path} has no row `{key}`; give a row number from 0, or a uuid.")
    try:
        return problem_from_row(row)
    except BadProblem as error:
        raise BadProblem(f"{path}#{key}: {error}") from None


def _numbered(path: Path, number: int) -> dict[str, Any] | None:
    for batch in _batches(path):
        if number < batch.num_rows:
            return _row(batch, number)
        number -= batch.num_rows
    return None


def _identified(path: Path, uuid: str) -> dict[str, Any] | None:
    for batch in _batches(path):
        for number, value in enumerate(_uuids(batch)):
            if str(value) == uuid:
                return _row(batch, number)
    return None


def _row(batch: Any, number: int) -> dict[str, Any]:
    row: dict[str, Any] = batch.slice(number, 1).to_pylist()[0]
    return row


def _uuids(batch: Any) -> list[object]:
    import pyarrow as pa

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    extra = columns.get("extra_info")
    if "uuid" not in columns and extra is not None and pa.types.is_struct(extra.type):
        columns = dict(zip((field.name for field in extra.type), extra.flatten(), strict=True))
    return list(columns["uuid"].to_pylist()) if "uuid" in columns else []


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in _data_files(path):
        if file.suffix == ".arrow":
            # `datasets` writes the stream format of Arrow IPC.
            with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as reader:
                yield from reader
        else:
            with pq.ParquetFile(file) as table:
                yield from table.iter_batches()


def _data_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # Beside its data, a folder of `datasets` may hold cache-*.arrow files.
    files = sorted(path.glob("data-*.arrow")) or sorted(path.glob("*.parquet"))
    if not files:
        raise BadProblem(f"{path} holds no data-*.arrow and no .parquet file; name the split's own folder.")
    return files
