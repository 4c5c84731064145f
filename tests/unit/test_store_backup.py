"""A backup is the whole store at one moment, and comes back whole, also in the other kind of database."""

import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from drkernel_q.errors import BadInput, NoStore, OutdatedStore
from drkernel_q.kernel import Kernel
from drkernel_q.lesson import Lesson
from drkernel_q.store import Store
from drkernel_q.store.backup import back_up, restore
from drkernel_q.store.table import Row
from drkernel_q.trajectory import Message, Trajectory, Turn
from tests.need import PATIENT_S
from tests.services import Postgres
from tests.values import (
    SOFTMAX,
    a_failure,
    a_reply,
    a_request,
    an_audit_reply,
    an_audit_request,
    an_evaluation,
)


def fill(store: Store) -> None:
    """Put something into every table, with all that texts can hold."""
    odd = "a\x00b\udcff␀ é"
    store.add_problem(SOFTMAX)
    store.add_run("r", kind="train", settings={"text": odd})
    turns = []
    history: tuple[Message, ...] = ()
    for number in (1, 2):
        history = (*history, Message(role="user", content=f"{odd} {number}"))
        facts = an_evaluation(speedup=2.0, profile_ratio=0.5, stdout=odd)
        turns.append(
            Turn(
                number=number,
                prompt=history,
                completion=odd,
                kernel=Kernel(source=odd, name="k"),
                evaluation=facts,
                prompt_ids=(1, 2**31 - 1),
                output_ids=(7,),
                logprobs=(-0.1,),
            )
        )
        history = (*history, Message(role="assistant", content=odd))
    store.add_trajectory("r", Trajectory(problem_hash=SOFTMAX.hash, turns=tuple(turns)))
    store.add_lessons("r", [Lesson(problem_hash=SOFTMAX.hash, trajectory=1, turn=1, step=1, reward=1.0, lazy=False)])
    request = a_request(run="r")
    store.record(request, a_reply(request, an_evaluation(integrity="rejected")))
    lost = a_request("lost")
    store.record(lost, a_failure(lost))
    audit = an_audit_request()
    store.record(audit, an_audit_reply(audit))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def other_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database that is not there yet or has no tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'other' / 'drkq.sqlite'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url(server.create())


def contents(store: Store) -> dict[str, list[Any]]:
    """Every row of every table."""

    def rows(connection: Connection, name: str) -> list[Any]:
        return sorted((tuple(row) for row in connection.execute(select(Row.metadata.tables[name]))), key=repr)

    with store.reading() as connection:
        return {name: rows(connection, name) for name in Row.metadata.tables}


@pytest.mark.slow
def test_what_is_backed_up_comes_back_in_either_database(store: Store, other_url: str, tmp_path: Path) -> None:
    fill(store)
    before = contents(store)
    counts = back_up(store, tmp_path / "new folder" / "backup.sqlite")
    assert counts == {name: len(rows) for name, rows in before.items()}
    with Store.open(other_url) as other:
        assert restore(tmp_path / "new folder" / "backup.sqlite", other) == counts
        assert contents(other) == before
        other.check()
        assert list(other.trajectories("r")) == list(store.trajectories("r"))
        request = a_request("later", run="r")
        assert other.record(request, a_reply(request)), "new rows have new ids"
        assert other.status().rows["evaluations"] == counts["evaluations"] + 1


def test_a_backup_is_one_private_file_that_sqlite_reads_alone(store: Store, tmp_path: Path) -> None:
    fill(store)
    back_up(store, tmp_path / "backup.sqlite")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(("backup", ".backup"))] == [
        "backup.sqlite"
    ]
    assert (tmp_path / "backup.sqlite").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(tmp_path / "backup.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_nothing_is_overwritten(store: Store, tmp_path: Path) -> None:
    fill(store)
    back_up(store, tmp_path / "backup.sqlite")
    with pytest.raises(BadInput, match="there already"):
        back_up(store, tmp_path / "backup.sqlite")
    before = contents(store)
    with pytest.raises(BadInput, match="restore into an empty one"):
        restore(tmp_path / "backup.sqlite", store)
    assert contents(store) == before


@pytest.mark.parametrize("text", [None, b"", b"no database" * 100])
def test_what_is_no_backup_is_said_and_leaves_the_store_empty(text: bytes | None, store: Store, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "backup.sqlite").write_bytes(text)
    with pytest.raises(BadInput, match="no backup"):
        restore(tmp_path / "backup.sqlite", store)
    assert not any(store.status().rows.values())


def test_a_backup_of_a_newer_drkq_is_refused(store: Store, tmp_path: Path) -> None:
    back_up(store, tmp_path / "backup.sqlite")
    with closing(sqlite3.connect(tmp_path / "backup.sqlite")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(OutdatedStore, match="newer drkq"):
        restore(tmp_path / "backup.sqlite", store)


def test_there_must_be_something_and_somewhere(tmp_path: Path, sqlite_template: Path) -> None:
    with (
        Store.open(f"sqlite:///{tmp_path / 'none.sqlite'}") as nothing,
        pytest.raises(OutdatedStore, match="no tables"),
    ):
        back_up(nothing, tmp_path / "backup.sqlite")
    (tmp_path / "file").touch()
    with Store.open(f"sqlite:///{sqlite_template}") as store, pytest.raises(NoStore, match="cannot be written"):
        back_up(store, tmp_path / "file" / "backup.sqlite")
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.slow
def test_a_backup_sees_one_moment_while_others_write(store: Store, tmp_path: Path) -> None:
    """Rows of a batch are all in it or none, and nobody who writes is kept waiting for good."""
    store.add_problem(SOFTMAX)
    stop, written = threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            requests = [a_request(f"{len(written)} {number}") for number in range(3)]
            store.record_all([(each, a_reply(each)) for each in requests])
            written.append(requests)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            seen = len(written)
            counts = back_up(store, tmp_path / f"{number}.sqlite")
            assert counts["evaluations"] % 3 == 0
            assert seen * 3 <= counts["evaluations"] <= (len(written) + 1) * 3
            assert counts["attempts"] == counts["kernels"] == counts["evaluations"]
    finally:
        stop.set()
        writer.join(PATIENT_S)
    assert store.status().rows["evaluations"] == 3 * len(written)


@pytest.mark.slow
def test_the_commands(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, empty, file = (tmp_path / name for name in ("full.sqlite", "empty.sqlite", "backup.sqlite"))
    full.write_bytes(sqlite_template.read_bytes())
    with Store.open(f"sqlite:///{full}") as store:
        fill(store)
        before = contents(store)

    def drkq(path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setenv("DRKQ_STORE_URL", f"sqlite:///{path}")
        command = [sys.executable, "-m", "drkernel_q", "db", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = drkq(full, "backup", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    assert "3 evaluations, 2 turns" in done.stderr
    done = drkq(empty, "restore", str(file), "--json")
    assert json.loads(done.stdout) == {name: len(rows) for name, rows in before.items()}
    again = drkq(empty, "restore", str(file))
    assert (again.returncode, "restore into an empty" in again.stderr) == (BadInput.exit_code, True)
    with Store.open(f"sqlite:///{empty}") as other:
        assert contents(other) == before
