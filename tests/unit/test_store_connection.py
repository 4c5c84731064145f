"""What goes wrong with a database is said in one sentence, and nothing is lost while it lasts."""

import os
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest

from drkernel_q.errors import BadInput, BadSettings, DrkqError, NoStore, OutdatedStore
from drkernel_q.store import Store, engine
from drkernel_q.store.query import ask_sql
from tests.need import PATIENT_S
from tests.services import Postgres
from tests.values import a_reply, a_request


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "no URL"),
        ("mysql://x/y", "not `mysql`"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
    ],
)
def test_a_url_that_is_no_store(url: str, said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        Store.open(url)


def test_the_folder_of_a_new_store_is_private(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/new/er/drkq.sqlite") as store:
        store.upgrade()
        assert store.path is not None
        assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/50 %25 #1&mode=ro/ü.sqlite") as store:
        store.upgrade()
        request = a_request()
        store.record(request, a_reply(request))
        assert store.find(request.id) is not None
        assert store.path is not None
        assert store.path.is_file()


def test_sqlite_is_in_wal_mode(sqlite_template: Path) -> None:
    with sqlite3.connect(sqlite_template) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_the_password_is_never_shown() -> None:
    store = Store.open("postgresql://someone:secret@127.0.0.1:1/x?password=secret")
    assert store.public_url == "postgresql+psycopg://someone@127.0.0.1:1/x"
    assert store.path is None
    with pytest.raises(NoStore, match=r"127\.0\.0\.1") as caught:
        store.find("x")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoStore, match="cannot be made"):
        Store.open(f"sqlite:///{tmp_path}/file/drkq.sqlite")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "drkq.sqlite"
    path.write_text("this is a letter, not a database; " * 50)
    with Store.open(f"sqlite:///{path}") as store:
        with pytest.raises(NoStore, match="not a database"):
            store.check()
        with pytest.raises(NoStore, match="not a database"):
            store.upgrade()


def test_a_database_without_our_tables(empty_url: str) -> None:
    request = a_request()
    with Store.open(empty_url) as store, pytest.raises(OutdatedStore):
        store.record(request, a_reply(request))


@pytest.mark.slow
def test_a_lock_that_lasts_is_an_error_and_one_that_ends_is_not(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "drkq.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 1.0)
    request = a_request()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        held.set()
        release.wait(PATIENT_S)
        connection.execute("COMMIT")
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENT_S)
    with Store.open(f"sqlite:///{path}") as store:
        started = time.monotonic()
        with pytest.raises(NoStore, match="locked"):
            store.record(request, a_reply(request))
        assert time.monotonic() - started >= 0.9
        # Readers do not wait for a writer.
        assert store.find(request.id) is None
        threading.Timer(0.3, release.set).start()
        assert store.record(request, a_reply(request))
    holder.join()


@pytest.mark.slow
@pytest.mark.postgres
def test_a_server_that_comes_back(postgres: Postgres, postgres_template: str) -> None:
    request = a_request()
    with Store.open(postgres.url(postgres.create(postgres_template))) as store:
        store.record(request, a_reply(request))
        postgres.stop()
        other = a_request()
        try:
            with pytest.raises(NoStore, match="cannot be used"):
                store.record(other, a_reply(other))
            with pytest.raises(NoStore):
                store.check()
        finally:
            postgres.start()
        assert store.record(other, a_reply(other))
        assert store.find(request.id) is not None


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM problems",
        "INSERT INTO problems (hash, name, source) VALUES ('x', 'x', 'x')",
        "DROP TABLE evidence",
        "CREATE TABLE mine (x INTEGER)",
        "SELECT 1; DROP TABLE evidence",
        "COMMIT; DROP TABLE evidence",
        "WITH gone AS (DELETE FROM problems RETURNING hash) SELECT * FROM gone",
        "SELEKT 1",
        "SELECT nonsense FROM problems",
        "",
    ],
)
def test_sql_of_ones_own_can_only_read(store: Store, sql: str) -> None:
    request = a_request()
    store.record(request, a_reply(request))
    before = store.status().rows
    with pytest.raises(DrkqError) as caught, ask_sql(store, sql) as answer:
        list(answer.rows)
    assert isinstance(caught.value, BadInput)
    assert store.status().rows == before


def test_sql_of_ones_own_is_taken_as_it_is(store: Store) -> None:
    """Neither a percent sign nor a colon is a parameter."""
    with ask_sql(store, "SELECT 'a%sb :name' AS x, 12 % 5 AS y, ':z' LIKE '%z' AS hit") as answer:
        assert answer.columns == ("x", "y", "hit")
        assert list(answer.rows) == [("a%sb :name", 2, True)]


def test_a_sqlite_reader_cannot_attach_and_write(sqlite_template: Path, tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{sqlite_template}") as store:
        for sql in (f"ATTACH '{tmp_path / 'other'}' AS other", "PRAGMA query_only = OFF"):
            with pytest.raises(BadInput), ask_sql(store, sql):
                pass
        with pytest.raises(BadInput), ask_sql(store, "DELETE FROM problems"):
            pass
    assert os.listdir(tmp_path) == []
