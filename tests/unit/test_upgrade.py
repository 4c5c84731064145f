"""A store that the first release of the schema wrote, with its data, is read by this one."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import DateTime, LargeBinary, MetaData, create_engine, insert, text

from drkernel_q.errors import OutdatedStore
from drkernel_q.store import Store, engine, schema
from drkernel_q.store.backup import back_up, restore
from drkernel_q.store.query import QUERIES, ask
from drkernel_q.store.rejudge import rejudge
from tests.need import ROOT
from tests.values import SOFTMAX, a_reply, a_request, an_evaluation

#: What revision 0001 wrote when it was the newest: rows as they lie in the database, and the replies that made them.
FIRST: dict[str, Any] = json.loads((ROOT / "tests" / "stores" / "0001.json").read_text())


def write_first(url: str) -> None:
    """Make a store of revision 0001 and put its rows in."""
    opened = engine.migrator(engine.parse(url))
    try:
        with opened.begin() as connection:
            command.upgrade(schema.config(connection), "0001")
            tables = MetaData()
            tables.reflect(connection)
            for name, rows in FIRST["tables"].items():
                kinds = {column.name: column.type for column in tables.tables[name].columns}
                for row in rows:
                    values = {key: _value(kinds[key], value) for key, value in row.items()}
                    connection.execute(insert(tables.tables[name]).values(values))
            if connection.dialect.name == "postgresql":
                for name, rows in FIRST["tables"].items():
                    if "id" in rows[0]:
                        move = f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), max(id)) FROM {name}"
                        connection.execute(text(move))
    finally:
        opened.dispose()


def _value(kind: object, value: Any) -> Any:
    if isinstance(kind, LargeBinary) or type(kind).__name__ == "BYTEA":
        return bytes.fromhex(value)
    return datetime.fromisoformat(value) if isinstance(kind, DateTime) and value else value


@pytest.fixture
def first(empty_url: str) -> Iterator[Store]:
    write_first(empty_url)
    with Store.open(empty_url) as store:
        yield store


def assert_holds(known: Any, found: Any, where: str = "") -> None:
    """Check that everything that was known is found, whatever was added to it since."""
    if isinstance(known, dict):
        for key, value in known.items():
            assert_holds(value, found[key], f"{where}.{key}")
    elif isinstance(known, list):
        assert len(known) == len(found), where
        for number, value in enumerate(known):
            assert_holds(value, found[number], f"{where}[{number}]")
    else:
        assert known == found, where


def test_everything_is_there_after_the_upgrade(first: Store) -> None:
    with pytest.raises(OutdatedStore, match="revision 0001"):
        first.check()
    first.upgrade()
    first.check()
    rows = first.status().rows
    assert {name: rows[name] for name in FIRST["tables"]} == {name: len(all_) for name, all_ in FIRST["tables"].items()}
    for reply in FIRST["replies"]:
        found = first.find(reply["id"])
        assert found is not None
        assert_holds(reply, found.model_dump(mode="json"))
    (trajectory,) = first.trajectories("first")
    assert [turn.completion for turn in trajectory.turns] == ["answer 1", "answer 2"]
    assert trajectory.turns[1].prompt[0].content == "turn 1 \x00"
    assert trajectory.turns[1].evaluation is not None
    assert trajectory.turns[1].evaluation.speedup == 1.5


def test_it_is_asked_written_and_judged_as_any_other(first: Store) -> None:
    first.upgrade()
    for query in QUERIES.values():
        given = {name: "first" for name, parameter in query.parameters.items() if parameter.required}
        with ask(first, query.name, given) as answer:
            list(answer.rows)
    with ask(first, "best-kernels", {"problem": SOFTMAX.name}) as answer:
        assert list(answer.rows)
    assert rejudge(first, dry_run=True).examined == 6
    request = a_request("new", run="first")
    assert first.record(request, a_reply(request, an_evaluation(speedup=3.0)))
    assert first.status().rows["evaluations"] == 7


@pytest.mark.slow
def test_an_old_backup_is_brought_up_to_date_as_it_is_restored(first: Store, tmp_path: Path) -> None:
    if first.path is None:
        with pytest.raises(OutdatedStore):
            back_up(first, tmp_path / "old.sqlite")
        return
    back_up(first, tmp_path / "old.sqlite")
    with Store.open(f"sqlite:///{tmp_path / 'new.sqlite'}") as new:
        assert restore(tmp_path / "old.sqlite", new)["evaluations"] == 6
        new.check()
        assert new.find(FIRST["replies"][0]["id"]) is not None
    with closing(create_engine(f"sqlite:///{tmp_path / 'old.sqlite'}").connect()) as connection:
        assert schema.revision(connection) == "0001", "the backup stays what it is"
