"""What many tests share: a real PostgreSQL, stores on both databases, and a judge on the cpu device."""

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from drkernel_q.store import Store
from drkernel_q.store.table import Row
from tests.judging import Bench
from tests.need import PATIENT_S, postgres_program, require

_numbers = itertools.count()


class Postgres:
    """A server on a socket in a folder of its own; it dies with the process that runs the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # initdb and postgres refuse to run as root.
        self.user = "postgres" if os.getuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user, self.user)
        self.process: subprocess.Popen[bytes] | None = None
        initdb = self._start(
            "initdb", "-D", str(folder / "data"), "-U", "drkq", "-A", "trust", "-E", "UTF8", "--no-sync"
        )
        assert initdb.wait(PATIENT_S) == 0, (folder / "log").read_text()
        self.start()

    def start(self) -> None:
        # Without fsync, since it lives for one session.
        options = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "fsync": "off"}
        options["full_page_writes"] = "off"
        flags = [flag for name, value in options.items() for flag in ("-c", f"{name}={value}")]
        self.process = self._start("postgres", "-D", str(self.folder / "data"), *flags)
        deadline = time.monotonic() + PATIENT_S
        while True:
            try:
                self.execute("SELECT 1")
            except OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        if self.process is not None:
            # As a machine that loses power: SIGQUIT is PostgreSQL's immediate shutdown.
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(PATIENT_S)
            self.process = None

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://drkq:secret@/{database}?host={self.folder}"

    def create(self, template: str = "template1") -> str:
        """Make a database as a copy of another one; return its name."""
        name = f"test_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def execute(self, statement: str, database: str = "postgres") -> None:
        engine = create_engine(self.url(database), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()

    def _start(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        path = postgres_program(program)
        assert path is not None
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [path, *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user,
                group=self.user,
                extra_groups=[] if self.user else None,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - it takes no lock that another thread could hold
            )


def _die_with_parent() -> None:
    """Ask the kernel for SIGQUIT when the tests are killed and can stop nothing any more."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGQUIT)


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
def postgres_shared(postgres: Postgres, postgres_template: str) -> str:
    """Name of a database for one test after the other: emptying it takes a tenth of the time of a copy."""
    return postgres.create(postgres_template)


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
    shared: str = request.getfixturevalue("postgres_shared")
    server.execute(f"TRUNCATE {', '.join(Row.metadata.tables)} RESTART IDENTITY", shared)
    return server.url(shared)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store, empty, on each kind of database."""
    with Store.open(store_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    """A judge on the cpu device, for tests that leave it as it was; to start one takes seconds."""
    bench = Bench("cpu")
    yield bench
    bench.close()


def _upgrade(url: str) -> None:
    with Store.open(url) as store:
        store.upgrade()
