"""What was exported says the same as the store, in every format, and `drkq db` gets it there."""

import csv
import json
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from drkernel_q.cli.db import command
from drkernel_q.errors import BadInput, OutdatedStore
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.store import Store, facts
from drkernel_q.store.dataset import DATASETS, PAGE
from drkernel_q.store.export import write_file
from drkernel_q.trajectory import Message, Trajectory, Turn
from tests.values import MATMUL, SOFTMAX, a_reply, a_request, an_evaluation

ROLLOUT = Trajectory(
    problem_hash=SOFTMAX.hash,
    turns=(
        Turn(
            number=1,
            prompt=(Message(role="system", content="You write kernels."), Message(role="user", content="softmax")),
            completion='```python\nx = "a,b"\n```',
            kernel=Kernel(source='x = "a,b"\n', name="turn 1"),
            evaluation=an_evaluation(speedup=1.5, profile_ratio=0.75),
            prompt_ids=(1, 2),
            output_ids=(3, 4, 5),
            logprobs=(-0.1, -0.2, -1e-9),
            finish_reason="stop",
            policy_version=7,
        ),
        Turn(number=2, prompt=(), completion=""),
    ),
)


@pytest.fixture
def full(store: Store) -> Store:
    """Two evaluations of the run `r`, one of no run, and a rollout of the run `train`."""
    rejected = an_evaluation("correct", "rejected", speedup=9.0)
    failed = an_evaluation("runtime_error", error='TypeError: "x"\nline 2, \0 and \ud800')
    for source, problem, evaluation, run in (
        ("a", SOFTMAX, rejected, "r"),
        ("b", SOFTMAX, failed, "r"),
        ("c", MATMUL, an_evaluation(), None),
    ):
        request = a_request(source, problem=problem, name=f"{source}.py", run=run)
        store.record(request, a_reply(request, evaluation))
    store.add_trajectory("train", ROLLOUT)
    return store


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_jsonl_of_evaluations_holds_request_and_document(full: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_file(full, "evaluations", "jsonl", path)
    documents = lines(path)
    assert [document["kernel_name"] for document in documents] == ["a.py", "b.py", "c.py", "turn 1"]
    first = documents[0]
    reply = full.find(first["request_id"])
    assert reply is not None
    assert facts.load(first["evaluation"]) == reply.evaluation
    assert first["evaluation"]["speedup"] == 9.0
    assert (first["run"], first["problem_name"], first["worker"], first["attempt"]) == ("r", "softmax", "box:cuda:0", 1)
    assert first["protocol"]["trials"] == 5
    assert first["finished_at"] == "2026-01-01T00:00:05+00:00"


def test_jsonl_of_trajectories_is_read_back_as_trajectories(full: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_file(full, "trajectories", "jsonl", path)
    (document,) = lines(path)
    place = {name: document.pop(name) for name in ("run", "problem_name", "number")}
    assert place == {"run": "train", "problem_name": "softmax", "number": 1}
    evaluation = document["turns"][0]["evaluation"]
    document["turns"][0]["evaluation"] = facts.load(evaluation).model_dump(round_trip=True)
    assert Trajectory.model_validate(document) == ROLLOUT


def test_parquet_of_evaluations(full: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_file(full, "evaluations", "parquet", path)
    read = pq.read_table(path)
    assert read.schema.equals(DATASETS["evaluations"].schema)
    rows = read.to_pylist()
    assert [row["kernel_name"] for row in rows] == ["a.py", "b.py", "c.py", "turn 1"]
    assert [row["speedup"] for row in rows] == [9.0, None, None, 1.5]
    assert [row["run"] for row in rows] == ["r", "r", None, "train"]
    assert rows[0]["finished_at"].isoformat() == "2026-01-01T00:00:05+00:00"
    assert rows[1]["error"] == 'TypeError: "x"\nline 2, \0 and \\ud800'
    assert facts.load(json.loads(rows[3]["document"])) == ROLLOUT.turns[0].evaluation


def test_parquet_of_trajectories_has_a_row_a_turn(full: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_file(full, "trajectories", "parquet", path)
    read = pq.read_table(path)
    assert read.schema.equals(DATASETS["trajectories"].schema)
    first, second = read.to_pylist()
    turn = ROLLOUT.turns[0]
    assert first["prompt"] == [message.model_dump() for message in turn.prompt]
    assert turn.kernel is not None
    assert (first["kernel_source"], first["kernel_hash"]) == (turn.kernel.source, turn.kernel.hash)
    assert (tuple(first["prompt_ids"]), tuple(first["output_ids"])) == (turn.prompt_ids, turn.output_ids)
    assert tuple(first["logprobs"]) == turn.logprobs
    assert (first["speedup"], first["profile_ratio"], first["policy_version"]) == (1.5, 0.75, 7)
    assert (second["turn"], second["kernel_source"], second["outcome"], second["prompt"]) == (2, None, None, [])


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_csv_has_the_columns_of_the_schema(full: Store, tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.csv"
    write_file(full, name, "csv", path)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == DATASETS[name].schema.names
    if name == "trajectories":
        assert json.loads(rows[0]["logprobs"]) == list(ROLLOUT.turns[0].logprobs)
        assert rows[0]["completion"] == ROLLOUT.turns[0].completion
    if name == "kernels":
        assert {row["source"] for row in rows} == {"a", "b", "c", 'x = "a,b"\n'}


def test_only_what_belongs_to_a_run(full: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_file(full, "evaluations", "jsonl", path, run="r")
    assert [document["kernel_name"] for document in lines(path)] == ["a.py", "b.py"]
    write_file(full, "kernels", "jsonl", path, run="train")
    assert [document["name"] for document in lines(path)] == ["turn 1"]
    write_file(full, "trajectories", "jsonl", path, run="r")
    assert lines(path) == []


def test_an_empty_store_gives_an_empty_file_with_columns(store: Store, tmp_path: Path) -> None:
    write_file(store, "evaluations", "parquet", tmp_path / "x.parquet")
    read = pq.read_table(tmp_path / "x.parquet")
    assert (read.num_rows, read.schema.names) == (0, DATASETS["evaluations"].schema.names)


@pytest.mark.slow
def test_more_than_one_page(store: Store, tmp_path: Path) -> None:
    requests = [a_request(f"kernel {number}") for number in range(PAGE + 1)]
    store.record_all([(request, a_reply(request)) for request in requests])
    write_file(store, "kernels", "parquet", tmp_path / "x.parquet")
    read = pq.ParquetFile(tmp_path / "x.parquet")
    assert read.metadata.num_row_groups == 2
    assert set(read.read().column("source").to_pylist()) == {request.kernel.source for request in requests}
    write_file(store, "evaluations", "jsonl", tmp_path / "x.jsonl")
    assert [document["request_id"] for document in lines(tmp_path / "x.jsonl")] == [each.id for each in requests]


def test_an_export_that_fails_leaves_the_old_file(full: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("old")
    with full.writing() as connection:
        connection.exec_driver_sql(
            "UPDATE evaluations SET document = '{\"schema_version\": 1}' WHERE turn_id IS NOT NULL"
        )
    with pytest.raises(ValueError, match="outcome"):
        write_file(full, "trajectories", "jsonl", path)
    assert [each.name for each in tmp_path.glob("*x.jsonl*")] == ["x.jsonl"]
    assert path.read_text() == "old"
    with pytest.raises(BadInput, match="cannot be written"):
        write_file(full, "kernels", "jsonl", tmp_path / "no" / "folder")


@pytest.fixture
def drkq(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `drkq db ...` over the store."""
    monkeypatch.setenv("DRKQ_STORE_URL", store_url)

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(command, arguments)
        if isinstance(result.exception, Exception):
            raise result.exception
        return result

    return run


def test_path_is_the_file_or_the_url_without_password(drkq: Any, store_url: str) -> None:
    expected = store_url.removeprefix("sqlite:///").replace(":secret", "")
    assert unquote(drkq("path").stdout) == f"{expected}\n"


def test_status_counts_rows(drkq: Any, full: Store) -> None:
    status = json.loads(drkq("status", "--json").stdout)
    assert status["revision"] == status["head"]
    assert status["rows"] == full.status().rows
    assert status["rows"]["evaluations"] == 4
    assert status["size_bytes"] > 10_000
    text = drkq("status").stdout
    assert "evaluations" in text
    assert "secret" not in text


def test_upgrade_says_what_it_did(monkeypatch: pytest.MonkeyPatch, empty_url: str) -> None:
    monkeypatch.setenv("DRKQ_STORE_URL", empty_url)
    first, second = (CliRunner().invoke(command, ["upgrade"]) for _ in range(2))
    assert "was empty" in first.stderr
    assert "was at revision" in second.stderr
    assert (first.exit_code, second.exit_code, first.stdout) == (0, 0, "")


@pytest.mark.usefixtures("full")
def test_query_in_every_form(drkq: Any) -> None:
    sql = ("--sql", "SELECT outcome, count(*) AS n FROM evaluations GROUP BY outcome ORDER BY outcome")
    rows = [{"outcome": "correct", "n": 3}, {"outcome": "runtime_error", "n": 1}]
    assert json.loads(drkq("query", *sql, "--json").stdout) == rows
    assert [json.loads(line) for line in drkq("query", *sql, "--jsonl").stdout.splitlines()] == rows
    assert drkq("query", *sql, "--csv").stdout == "outcome,n\ncorrect,3\nruntime_error,1\n"
    assert drkq("query", *sql).stdout.split() == ["outcome", "n", "correct", "3", "runtime_error", "1"]
    (rates,) = json.loads(drkq("query", "rates", "--param", "run=r", "--json").stdout)
    assert (rates["evaluations"], rates["hack_rate"]) == (2, 0.5)


def test_query_list_names_queries_and_parameters(drkq: Any) -> None:
    text = drkq("query", "--list").stdout
    assert "fast-p" in text
    assert "p=1.0" in text


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("recent", "--list"),
        ("recent", "--sql", "SELECT 1"),
        ("recent", "--param", "limit"),
        ("--sql", "SELECT 1", "--param", "a=b"),
    ],
)
def test_query_usage(drkq: Any, arguments: tuple[str, ...]) -> None:
    assert drkq("query", *arguments).exit_code == 2


@pytest.mark.usefixtures("full")
def test_export_to_a_file_and_to_stdout(drkq: Any, tmp_path: Path) -> None:
    target = tmp_path / "kernels.jsonl"
    assert drkq("export", "--format", "jsonl", "--table", "kernels", "-o", str(target)).stdout == ""
    assert drkq("export", "--format", "jsonl", "--table", "kernels", "-o", "-").stdout == target.read_text()
    csv_text = drkq("export", "--format", "csv", "--table", "kernels", "-o", "-").stdout
    assert len(list(csv.DictReader(csv_text.splitlines()))) == len(target.read_text().splitlines())
    assert drkq("export", "--format", "parquet", "-o", "-").exit_code == 2


def test_reading_a_store_that_is_not_there_makes_none(
    drkq: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRKQ_STORE_URL", f"sqlite:///{tmp_path}/none/drkq.sqlite")
    for arguments in (("query", "recent"), ("export", "--format", "csv", "-o", "-")):
        with pytest.raises(OutdatedStore, match="no tables yet"):
            drkq(*arguments)
    assert json.loads(drkq("status", "--json").stdout)["revision"] is None
    assert not (tmp_path / "none" / "drkq.sqlite").exists()


def test_the_file_can_be_read_by_sqlite_alone(sqlite_template: Path) -> None:
    """The reference says so: no function of ours is needed to read what is there."""
    connection = sqlite3.connect(f"file:{sqlite_template}?mode=ro", uri=True)
    assert connection.execute("SELECT count(*) FROM evaluations").fetchone() == (0,)
    connection.close()


def test_an_evaluation_document_is_what_eval_prints() -> None:
    evaluation: Evaluation = an_evaluation(speedup=2.0)
    stored = facts.document(evaluation)
    assert stored == json.loads(evaluation.model_dump_json())
