"""Rows in files: JSON Lines, Parquet, and folders that `datasets` loads, with a card."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from drkernel_q.errors import BadInput
from drkernel_q.store.export import replacing, write_lines

Form = Literal["jsonl", "parquet", "folder"]
FORMS = ("jsonl", "parquet", "folder")
_PAGE = 200
_SHARD = "train-00000-of-00001.parquet"


def write_rows(rows: Sequence[dict[str, Any]], path: Path, form: str, *, card: str = "") -> None:
    """Write rows; a folder gets `data/train-*.parquet` and the card as its README.md.

    Raises:
        BadInput: there are no rows, which no Parquet file can tell the columns of, or nothing can be written there.
    """
    if form == "jsonl":
        write_lines(rows, path)
        return
    if not rows:
        raise BadInput("There are no rows to write.")
    try:
        if form == "folder":
            (path / "data").mkdir(parents=True, exist_ok=True)
            (path / "README.md").write_text(card, encoding="utf-8")
        with replacing(path / "data" / _SHARD if form == "folder" else path) as part:
            _write_parquet(rows, part)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}.") from error


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a JSON Lines file, of a Parquet file, or of every Parquet file of a folder.

    Raises:
        BadInput: there is no such file, or it holds something else.
    """
    try:
        if path.is_dir():
            files = sorted(path.rglob("*.parquet"))
            if not files:
                raise BadInput(f"{path} holds no Parquet file.")
            for file in files:
                yield from _parquet_rows(file)
        elif path.suffix == ".parquet":
            yield from _parquet_rows(path)
        else:
            yield from _json_rows(path)
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{path} cannot be read: {error}.") from error


def _write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    schema = pa.Table.from_pylist(list(rows)).schema
    todo = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while page := list(islice(todo, _PAGE)):
            writer.write_batch(pa.RecordBatch.from_pylist(page, schema=schema))


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(path) as table:
        for batch in table.iter_batches():
            yield from batch.to_pylist()


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise BadInput(f"{path}, line {number}, is no JSON: {error}.") from None
            if not isinstance(row, dict):
                raise BadInput(f"{path}, line {number}, is no object.")
            yield row
