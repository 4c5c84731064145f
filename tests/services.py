"""A real PostgreSQL for the store's tests, and stores on both databases."""

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from drkernel_q.store import Store
from tests.need import postgres_program, require

_numbers = itertools.count()


class Postgres:
    """A server on a socket in a folder of its own; without fsync, since it lives for one session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # initdb and postgres refuse to run as root.
        self.user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        if os.getuid() == 0:
            shutil.chown(folder, self.user)
        self._call("initdb", "-D", str(folder / "data"), "-U", "drkq", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off -c max_connections=60"
        self._call(
            "pg_ctl", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-o", options, "-w", "start"
        )

    def stop(self) -> None:
        self._call("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://drkq:secret@/{database}?host={self.folder}"

    def create(self, template: str = "template1") -> str:
        """Make a database as a copy of another one; return its name."""
        name = f"test_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def execute(self, statement: str) -> None:
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()

    def _call(self, program: str, *arguments: str) -> None:
        path = postgres_program(program)
        assert path is not None
        command = [path, *arguments]
        if os.getuid() == 0:
            command = ["runuser", "-u", self.user, "--", *command]
        # Not captured: the server would inherit the pipe, and reading it would never end.
        with (self.folder / "out").open("wb") as out:
            subprocess.run(command, check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=50)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    require("PostgreSQL (initdb, pg_ctl)", postgres_program("initdb") and postgres_program("pg_ctl"))
    folder = Path(tempfile.mkdtemp(prefix="dq-pg-", dir="/tmp"))
    server = Postgres(folder)
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """Name of a database with all tables, to be copied."""
    name = postgres.create()
    _upgrade(postgres.url(name))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables, to be copied."""
    path = tmp_path_factory.mktemp("template") / "drkq.sqlite"
    _upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without tables, on each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'drkq.sqlite'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url(server.create())


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a store that is up to date and empty, on each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{shutil.copy(request.getfixturevalue('sqlite_template'), tmp_path / 'drkq.sqlite')}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url(server.create(request.getfixturevalue("postgres_template")))


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store, empty, on each kind of database."""
    with Store.open(store_url) as opened:
        yield opened


def _upgrade(url: str) -> None:
    with Store.open(url) as store:
        store.upgrade()
