"""The persister loses nothing and writes nothing twice, whatever dies, locks or is malformed."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from drkernel_q.errors import NoBroker, NoStore, OutdatedStore
from drkernel_q.evaluation import Reply
from drkernel_q.persist import Persister
from drkernel_q.queue import keys
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.ledger import encode
from drkernel_q.request import Request
from drkernel_q.store import Store, engine
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, own_broker, persisting
from tests.services import Postgres
from tests.values import H200, a_failure, a_reply, a_request, an_audit, an_audit_reply, an_audit_request, an_evaluation

pytestmark = pytest.mark.redis
PATIENCE_S = 20.0


@pytest.fixture
def client(broker: Broker) -> Iterator[Redis]:
    with broker.client() as opened:
        yield opened


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    (tmp_path / "drkq.sqlite").write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{tmp_path / 'drkq.sqlite'}"


def publish(client: Redis, request: Request, reply: Reply) -> None:
    client.xadd(keys.RESULTS, {"request": encode(request), "reply": encode(reply)})


def publish_some(client: Redis, number: int) -> list[Reply]:
    requests = [a_request(f"kernel {index}", run="r") for index in range(number)]
    replies = [a_reply(request, an_evaluation(speedup=2.0)) for request in requests]
    for request, reply in zip(requests, replies, strict=True):
        publish(client, request, reply)
    return replies


def eventually(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def pending(client: Redis) -> int:
    """Entries that a persister was given and has not acknowledged."""
    try:
        summary: Any = client.xpending(keys.RESULTS, keys.RESULTS_GROUP)
    except ResponseError:  # no persister has made the group yet
        return 0
    return int(summary["pending"])


def test_replies_reach_the_store_and_leave_the_stream(broker: Broker, client: Redis, store: Store) -> None:
    replies = publish_some(client, 3)
    lost = a_request()
    publish(client, lost, a_failure(lost))
    with persisting(broker, store):
        eventually(lambda: client.xlen(keys.RESULTS) == 0)
        late = publish_some(client, 2)
        eventually(lambda: client.xlen(keys.RESULTS) == 0)
    assert [store.find(reply.id) for reply in replies + late] == replies + late
    found = store.find(lost.id)
    assert found is not None
    assert found.failure is not None
    assert pending(client) == 0


async def test_a_client_waits_for_the_store_where_it_is_written_to(broker: Broker, client: Redis, store: Store) -> None:
    async with EvaluationQueue(broker.url) as queue:
        assert await queue.written(0.0), "nothing is to be written"
        publish_some(client, 3)
        began = time.monotonic()
        assert not await queue.written(PATIENCE_S), "there is no persister"
        assert time.monotonic() - began < PATIENCE_S
        client.xgroup_create(keys.RESULTS, keys.RESULTS_GROUP, id="0")
        assert not await queue.written(0.1), "there was one, and it is away"
        with persisting(broker, store):
            assert await queue.written(PATIENCE_S)
            assert store.status().rows["evaluations"] == 3
        client.xadd(keys.RESULTS, {"later": ""}, id=f"{2**42}-0")
        assert await queue.written(0.0), "what came after is no matter"


def test_audits_reach_the_store_among_evaluations(broker: Broker, client: Redis, store: Store) -> None:
    request = an_audit_request()
    reply = an_audit_reply(request, an_audit(zeros_pass=True))
    for _ in range(2):  # delivered twice
        publish(client, request, reply)
    replies = publish_some(client, 2)
    Persister(client, store).drain()
    assert store.audits(request.problem.hash) == {H200: reply.audit}
    assert store.status().rows["audits"] == store.status().rows["audit_flags"] == 1
    assert store.status().rows["evaluations"] == len(replies)
    assert client.xlen(keys.RESULTS_DEAD) == 0


@pytest.mark.slow
def test_two_persisters_share_the_work(broker: Broker, client: Redis, store: Store) -> None:
    replies = publish_some(client, 30)
    with persisting(broker, store), persisting(broker, store):
        eventually(lambda: client.xlen(keys.RESULTS) == 0)
    assert store.status().rows["evaluations"] == len(replies)


def test_drain_writes_everything_and_returns(broker: Broker, client: Redis, store: Store) -> None:
    replies = publish_some(client, 5)
    # Handed to a persister that died before it wrote them.
    client.xgroup_create(keys.RESULTS, keys.RESULTS_GROUP, id="0")
    client.xreadgroup(keys.RESULTS_GROUP, "the dead", {keys.RESULTS: ">"}, count=2)
    Persister(client, store).drain()
    assert store.status().rows["evaluations"] == len(replies)
    assert (client.xlen(keys.RESULTS), pending(client)) == (0, 0)
    Persister(client, store).drain()


def test_more_than_a_batch(broker: Broker, client: Redis, sqlite_url: str) -> None:
    request = a_request()
    entry = {"request": encode(request), "reply": encode(a_reply(request))}
    with client.pipeline() as pipe:
        for _ in range(450):
            pipe.xadd(keys.RESULTS, entry)  # type: ignore[arg-type]
        pipe.execute()
    with Store.open(sqlite_url) as store:
        Persister(client, store).drain()
        assert store.status().rows["evaluations"] == 1
    assert client.xlen(keys.RESULTS) == 0


MALFORMED: list[dict[Any, Any]] = [
    {"reply": "{}"},
    {"request": "{}", "reply": "{}"},
    {"request": b"\xff\xfe", "reply": b"\x00"},
    {"request": '{"id": "\\ud800"}', "reply": "{}"},
    {"request": "[" * 100_000, "reply": "{}"},
]


@pytest.mark.parametrize("fields", MALFORMED)
def test_a_malformed_entry_is_put_aside_with_its_error(
    broker: Broker, client: Redis, sqlite_url: str, fields: dict[Any, Any]
) -> None:
    client.xadd(keys.RESULTS, fields)
    (reply,) = publish_some(client, 1)
    with Store.open(sqlite_url) as store:
        with persisting(broker, store):
            eventually(lambda: client.xlen(keys.RESULTS) == 0)
        assert store.find(reply.id) == reply
    assert client.xlen(keys.RESULTS_DEAD) == 1
    assert pending(client) == 0
    with Redis(unix_socket_path=str(broker.folder / "b.sock"), password="secret") as raw:
        found: Any = raw.xrange(keys.RESULTS_DEAD)
    ((_, dead),) = found
    assert dead.pop(b"error")
    plain = {name.encode(): value.encode() if isinstance(value, str) else value for name, value in fields.items()}
    assert dead == plain


def test_an_entry_that_spoils_its_batch_is_put_aside_alone(broker: Broker, client: Redis, store: Store) -> None:
    """Well-formed, but the store cannot hold it: attempt 0, and a number that no database has room for."""
    before = publish_some(client, 2)
    for spoiled in (a_request(turn=2**70), a_request(turn=-(2**40))):
        reply = a_reply(spoiled).model_copy(update={"attempt": 0 if spoiled.turn and spoiled.turn < 0 else 1})
        publish(client, spoiled, reply)
    mixed = a_request()
    publish(client, mixed, a_reply(a_request()))
    after = publish_some(client, 2)
    with persisting(broker, store):
        eventually(lambda: client.xlen(keys.RESULTS) == 0)
    assert [store.find(reply.id) for reply in before + after] == before + after
    assert store.status().rows["evaluations"] == 4
    errors = [fields["error"] for _, fields in client.xrange(keys.RESULTS_DEAD)]  # type: ignore[union-attr]
    assert len(errors) == 3
    assert "came with the request" in errors[2]


@pytest.mark.slow
def test_a_database_that_is_locked_for_seconds_loses_nothing(
    broker: Broker, client: Redis, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
    with Store.open(sqlite_url) as store:
        assert store.path is not None
        locker = sqlite3.connect(store.path, isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        with persisting(broker, store):
            replies = publish_some(client, 4)
            eventually(lambda: pending(client) > 0)
            time.sleep(1.5)
            assert client.xlen(keys.RESULTS) == 4
            locker.execute("ROLLBACK")
            eventually(lambda: client.xlen(keys.RESULTS) == 0)
        locker.close()
        assert [store.find(reply.id) for reply in replies] == replies
    assert client.xlen(keys.RESULTS_DEAD) == 0


def test_told_to_stop_while_the_database_is_locked(
    broker: Broker, client: Redis, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
    with Store.open(sqlite_url) as store:
        assert store.path is not None
        locker = sqlite3.connect(store.path, isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        replies = publish_some(client, 2)
        started = time.monotonic()
        with persisting(broker, store):
            eventually(lambda: pending(client) > 0)
        assert time.monotonic() - started < 15, "it does not wait for the lock"
        with pytest.raises(NoStore, match="locked"):
            Persister(client, store).drain()
        locker.close()
        Persister(client, store).drain()
        assert [store.find(reply.id) for reply in replies] == replies


@pytest.mark.postgres
@pytest.mark.slow
def test_a_server_that_goes_away_loses_nothing(
    broker: Broker, client: Redis, postgres: Postgres, postgres_template: str
) -> None:
    with Store.open(postgres.url(postgres.create(postgres_template))) as store, persisting(broker, store):
        first = publish_some(client, 2)
        eventually(lambda: client.xlen(keys.RESULTS) == 0)
        postgres.stop()
        try:
            second = publish_some(client, 2)
            eventually(lambda: pending(client) > 0)
        finally:
            postgres.start()
        eventually(lambda: client.xlen(keys.RESULTS) == 0)
        assert [store.find(reply.id) for reply in first + second] == first + second


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back(sqlite_url: str) -> None:
    with own_broker("--appendonly", "yes") as broker, Store.open(sqlite_url) as store, persisting(broker, store):
        with broker.client() as client:
            publish_some(client, 1)
            eventually(lambda: client.xlen(keys.RESULTS) == 0)
        broker.stop()
        time.sleep(0.5)
        broker.start()
        with broker.client() as client:
            (reply,) = publish_some(client, 1)
            eventually(lambda: client.xlen(keys.RESULTS) == 0)
        assert store.find(reply.id) == reply


def test_a_broker_that_forgot_everything(broker: Broker, client: Redis, sqlite_url: str) -> None:
    """The group is gone with the stream; it is made again."""
    with Store.open(sqlite_url) as store, persisting(broker, store):
        publish_some(client, 1)
        eventually(lambda: client.xlen(keys.RESULTS) == 0)
        client.flushall()
        (reply,) = publish_some(client, 1)
        eventually(lambda: store.find(reply.id) == reply)


DYING = """
import os, signal, sys
from drkernel_q.persist import Persister
from drkernel_q.store import Store

class Dying(Store):
    def record_all(self, pairs):
        if sys.argv[3] == "after":
            super().record_all(pairs)
        os.kill(os.getpid(), signal.SIGKILL)

Persister(sys.argv[1], Dying.open(sys.argv[2])).drain()
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_before_or_after_its_commit(
    broker: Broker, client: Redis, store: Store, store_url: str, moment: str
) -> None:
    """A real process dies by SIGKILL around its commit, always before its XACK; each reply is one row in the end."""
    replies = publish_some(client, 3)
    dying = subprocess.run([sys.executable, "-c", DYING, broker.url, store_url, moment], check=False, timeout=PATIENT_S)
    assert dying.returncode == -signal.SIGKILL
    assert store.status().rows["evaluations"] == (3 if moment == "after" else 0)
    assert (client.xlen(keys.RESULTS), pending(client)) == (3, 3)
    with persisting(broker, store):
        eventually(lambda: client.xlen(keys.RESULTS) == 0)
    assert store.status().rows["evaluations"] == 3
    assert [store.find(reply.id) for reply in replies] == replies


@contextmanager
def drkq_persist(broker_url: str, store_url: str) -> Iterator["subprocess.Popen[str]"]:
    environment = os.environ | {"DRKQ_BROKER_URL": broker_url, "DRKQ_STORE_URL": store_url}
    # fmt: off
    process = subprocess.Popen(
        [sys.executable, "-m", "drkernel_q", "persist"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    # fmt: on
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_command_writes_until_it_is_told_to_end(broker: Broker, client: Redis, sqlite_url: str) -> None:
    with drkq_persist(broker.url, sqlite_url) as process, Store.open(sqlite_url) as store:
        (reply,) = publish_some(client, 1)
        eventually(lambda: store.find(reply.id) == reply)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "")
    assert "Stored 1 replies." in err


@pytest.mark.slow
def test_the_command_needs_tables_and_a_broker(sqlite_url: str, tmp_path: Path) -> None:
    nowhere = f"redis+socket://{tmp_path}/none.sock?virtual_host=0"
    with drkq_persist(nowhere, sqlite_url) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "broker does not answer" in err) == (NoBroker.exit_code, True)
    with drkq_persist(nowhere, f"sqlite:///{tmp_path}/empty.sqlite") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "drkq db upgrade" in err) == (OutdatedStore.exit_code, True)
