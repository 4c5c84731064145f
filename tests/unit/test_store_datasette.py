"""What Datasette is told runs on a plain SQLite connection, with nothing but text in its forms."""

import re
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from drkernel_q.cli import drkq
from drkernel_q.kernel import Kernel
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.store.datasette import configuration
from drkernel_q.store.query import ask
from drkernel_q.store.table import Row
from drkernel_q.trajectory import Trajectory, Turn
from tests.values import SOFTMAX, an_evaluation

DATABASE = configuration("drkq")["databases"]["drkq"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRKQ_DATA_DIR", str(tmp_path))
    with Store.open(load_settings().store) as store:
        store.upgrade()
        store.add_problem(SOFTMAX)
        turn = Turn(
            number=1, prompt=(), completion="", kernel=Kernel(source="k"), evaluation=an_evaluation(speedup=2.0)
        )
        store.add_trajectory("r", Trajectory(problem_hash=SOFTMAX.hash, turns=(turn,)))
        assert store.path is not None
        return store.path


def test_every_canned_query_runs_with_forms_left_empty(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        for name, query in DATABASE["queries"].items():
            fields = set(re.findall(r"NULLIF\(:([a-z_]+)", query["sql"]))
            cursor = connection.execute(query["sql"], dict.fromkeys(fields, ""))
            assert cursor.description is not None, name
    connection.close()


def test_a_canned_query_answers_as_the_named_one(file: Path) -> None:
    with Store.open(f"sqlite:///{file}") as store, ask(store, "fast-p", {"run": "r", "p": 1.5}) as answer:
        expected = list(answer.rows)
    with sqlite3.connect(file) as connection:
        assert connection.execute(DATABASE["queries"]["fast-p"]["sql"], {"run": "r", "p": "1.5"}).fetchall() == expected
        assert connection.execute(DATABASE["queries"]["fast-p"]["sql"], {"run": "r", "p": "2.5"}).fetchall()[0][-1] == 0
    connection.close()


def test_facets_are_columns() -> None:
    for table, settings in DATABASE["tables"].items():
        assert {*settings["facets"]} <= {column.name for column in Row.metadata.tables[table].columns}


def test_the_command_names_the_database(file: Path) -> None:
    result = CliRunner().invoke(drkq, ["db", "datasette"])
    assert result.exit_code == 0
    assert '"drkq": {' in result.stdout
