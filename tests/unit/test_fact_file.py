"""Facts that were measured elsewhere: what a file of them holds, and whom they answer."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from drkernel_q.cli import drkq
from drkernel_q.errors import BadInput
from drkernel_q.evaluation import EvaluationRequest, Protocol
from drkernel_q.queue.archive import Memory
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.store.export import write_file
from drkernel_q.store.fact_file import import_facts
from tests.values import H200, MATMUL, a_reply, a_request, an_evaluation


def recorded_on_an_h200(store: Store) -> list[EvaluationRequest]:
    requests = [a_request("x = 1", run="facts"), a_request("x = 2", problem=MATMUL, run="facts")]
    for request, speedup in zip(requests, (1.5, 2.5), strict=True):
        store.record(request, a_reply(request, an_evaluation(speedup=speedup, profile_ratio=0.9)))
    of_another_run = a_request("x = 3", run="other")
    store.record(of_another_run, a_reply(of_another_run, an_evaluation("wrong_value", "unknown")))
    return requests


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with Store.open(f"sqlite:///{tmp_path / 'gpu.sqlite'}") as store:
        store.upgrade()
        recorded_on_an_h200(store)
        write_file(store, "facts", "parquet", tmp_path / "facts.parquet", "facts")
    return tmp_path / "facts.parquet"


def test_a_file_comes_back_as_the_same_replies(store: Store, file: Path, tmp_path: Path) -> None:
    done = import_facts(store, file)
    assert (done.added, done.known, done.device_kinds) == (2, 0, (H200,))
    assert import_facts(store, file) == done._replace(added=0, known=2)
    with Store.open(f"sqlite:///{tmp_path / 'gpu.sqlite'}") as origin:
        for row in pq.read_table(file).to_pylist():
            assert store.find(row["request_id"]) == origin.find(row["request_id"])
            assert store.problem(row["problem_hash"]) == origin.problem(row["problem_hash"])


async def test_recorded_facts_answer_for_the_device_that_is_named(store: Store, file: Path) -> None:
    import_facts(store, file)
    memory = Memory(store, H200)
    reply = await memory.recorded(a_request("x = 1"))
    assert reply is not None
    assert reply.evaluation is not None
    assert (reply.evaluation.speedup, reply.evaluation.environment.device_kind) == (1.5, H200)
    otherwise = [
        a_request("x = 1", problem=MATMUL),
        a_request("x = 4"),
        a_request("x = 1", protocol=Protocol(trials=7)),
    ]
    assert [await memory.recorded(request) for request in otherwise] == [None, None, None]
    assert await Memory(store).recorded(a_request("x = 1")) is None
    assert await Memory(store, "cpu").recorded(a_request("x = 1")) is None
    assert await Memory(None, H200).recorded(a_request("x = 1")) is None


@pytest.mark.parametrize("content", [None, b"no Parquet", {"a": [1]}, {"request_id": ["x"]}])
def test_a_file_of_something_else_is_refused(store: Store, tmp_path: Path, content: object) -> None:
    path = tmp_path / "x.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        pq.write_table(pa.table(content), path)
    with pytest.raises(BadInput, match=r"x\.parquet"):
        import_facts(store, path)


def test_a_row_that_is_damaged_is_refused(store: Store, file: Path, tmp_path: Path) -> None:
    table = pq.read_table(file)
    place = table.schema.get_field_index("document")
    pq.write_table(table.set_column(place, "document", pa.array(["{}", "{}"])), tmp_path / "bad.parquet")
    with pytest.raises(BadInput, match="holds no facts"):
        import_facts(store, tmp_path / "bad.parquet")
    assert store.status().rows["evaluations"] == 0


def test_the_command_says_where_facts_are_from(file: Path) -> None:
    done = CliRunner().invoke(drkq, ["db", "import", str(file)])
    assert done.exit_code == 0, done.stderr
    assert f"2 evaluations added, 0 were there already; measured on {H200}." in done.stderr
    with Store.open(load_settings().store) as store:
        assert store.conditions("cpu") == []
        assert len(store.conditions(H200)) == 1
