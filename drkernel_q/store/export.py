"""The store as files for other tools: JSON Lines, Parquet and CSV, one row after the other in constant memory."""

import contextlib
import csv
import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from drkernel_q.errors import BadInput
from drkernel_q.store.dataset import DATASETS, PAGE, Document
from drkernel_q.store.store import Store

FORMATS = ("jsonl", "parquet", "csv")


def write_jsonl(documents: Iterable[Document], file: TextIO) -> None:
    """Write one JSON document a line."""
    for document in documents:
        file.write(json.dumps(document) + "\n")


def write_csv(schema: pa.Schema, rows: Iterable[Document], file: TextIO) -> None:
    """Write a header and rows; lists and documents become JSON."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(schema.names)
    writer.writerows(flat(schema, rows))


def write_parquet(schema: pa.Schema, rows: Iterator[Document], path: Path) -> None:
    """Write rows as Parquet, `PAGE` to a row group."""
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while page := list(islice(rows, PAGE)):
            writer.write_batch(pa.RecordBatch.from_pylist([_utf8(row) for row in page], schema=schema))


def flat(schema: pa.Schema, rows: Iterable[Document]) -> Iterator[list[object]]:
    """Rows as plain values in the order of the schema."""
    for row in rows:
        yield [_flat_value(_utf8(row[name])) for name in schema.names]


def write_file(store: Store, name: str, kind: str, path: Path, run: str | None = None) -> None:
    """Export one of `DATASETS` as `jsonl`, `csv` or `parquet`; the file appears when it is whole.

    Raises:
        BadInput: the file cannot be written.
    """
    chosen = DATASETS[name]
    try:
        with replacing(path) as part:
            if kind == "parquet":
                write_parquet(chosen.schema, chosen.rows(store, run), part)
                return
            with part.open("w", encoding="utf-8", newline="") as file:
                if kind == "csv":
                    write_csv(chosen.schema, chosen.rows(store, run), file)
                else:
                    write_jsonl(chosen.documents(store, run), file)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}.") from error


def write_lines(documents: Iterable[Document], path: Path) -> None:
    """Write one JSON document a line; the file appears when it is whole.

    Raises:
        BadInput: the file cannot be written.
    """
    try:
        with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
            write_jsonl(documents, file)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}.") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file beside `path` that takes its place at the end of the block, and vanishes after an error."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _flat_value(value: Any) -> object:
    if isinstance(value, list | dict):
        return json.dumps(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _utf8(value: Any) -> Any:
    r"""Write lone surrogates, which no UTF-8 file can hold, as `\udXXX`."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_utf8(item) for item in value]
    if isinstance(value, dict):
        return {name: _utf8(item) for name, item in value.items()}
    return value
