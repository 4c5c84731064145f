"""The persister: takes finished evaluations from the broker's results stream and writes them to the store.

An entry leaves the stream only after its transaction has committed. Whatever dies in between, the entry comes
again, and recording it again changes nothing; so each reply is written once in effect. While the store is locked
or away the entries stay in the stream. An entry that can never be written moves to the stream of dead ones.
"""

import logging
import socket
import threading
import time
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter
from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from drkernel_q.audit import AuditRequest
from drkernel_q.errors import NoStore, OutdatedStore
from drkernel_q.evaluation import EvaluationRequest, Reply
from drkernel_q.queue import keys
from drkernel_q.queue.connection import connect
from drkernel_q.store import Store

#: Entries of one transaction.
BATCH = 200
#: Longest wait for new entries in one call: far below the socket's time-out, and how long a stop may take.
BLOCK_MS = 250
#: How often to look for entries that a persister took and left behind, and how old those must be.
CLAIM_EVERY_S = 60.0
CLAIM_IDLE_MS = 60_000
#: Waits between tries while store or broker is away: the first, doubled up to the last.
FIRST_WAIT_S = 0.2
LAST_WAIT_S = 5.0
#: Dead entries that are kept, about.
DEAD_LENGTH = 10_000

#: Either kind; a request for an audit is the one without a kernel.
_REQUEST: TypeAdapter[EvaluationRequest | AuditRequest] = TypeAdapter(EvaluationRequest | AuditRequest)

log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One entry of the stream that could be read."""

    id: bytes
    fields: dict[bytes, bytes]
    request: EvaluationRequest | AuditRequest
    reply: Reply


def lag_s(broker: Redis) -> float:
    """Tell how long the oldest reply waits to be written, by the broker's clock; 0 when none does."""
    oldest: Any = broker.xrange(keys.RESULTS, count=1)
    seconds, microseconds = broker.time()
    if not oldest:
        return 0.0
    return max(0.0, seconds + microseconds / 1e6 - keys.moment_ms(oldest[0][0]) / 1e3)


class Persister:
    """Moves replies from the broker to the store; any number may run at once."""

    def __init__(self, broker: Redis | str, store: Store) -> None:
        """Take a broker's URL, or a client made by `drkernel_q.queue.connection.connect`, and an open store."""
        self._redis = _own_client(connect(broker) if isinstance(broker, str) else broker)
        self._store = store
        # Two on one host may share the name: what one of them reads, the other is not given.
        self._name = socket.gethostname()

    def run(self, stop: threading.Event) -> None:
        """Write what comes until `stop` is set; the batch in hand is finished first, if the store lets it."""
        idle_ms, wait_s = 0, FIRST_WAIT_S
        claim_at = time.monotonic()
        while not stop.is_set():
            try:
                if time.monotonic() >= claim_at:
                    self._make_group()
                    self._claim(idle_ms, stop)
                    idle_ms, claim_at = CLAIM_IDLE_MS, time.monotonic() + CLAIM_EVERY_S
                self._insist(self._read(block_ms=BLOCK_MS), stop)
                wait_s = FIRST_WAIT_S
            except RedisError as error:
                log.warning("The broker fails, trying again: %s", error, extra={"action": "broker_failed"})
                # What was read but not seen belongs to this consumer: claim it, however young.
                idle_ms, claim_at = 0, time.monotonic()
                stop.wait(wait_s)
                wait_s = min(2 * wait_s, LAST_WAIT_S)

    def drain(self) -> None:
        """Write everything that is in the stream now, for a stack that is about to end.

        Raises:
            NoStore: the store cannot be written; the entries stay.
            OutdatedStore: the store's tables are not there.
            RedisError: the broker does not answer.
        """
        self._make_group()
        self._claim(0, None)
        while entries := self._read(block_ms=None):
            self._write(entries)

    def _make_group(self) -> None:
        try:
            self._redis.xgroup_create(keys.RESULTS, keys.RESULTS_GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    def _read(self, *, block_ms: int | None) -> list[Entry]:
        found: Any = self._redis.xreadgroup(
            keys.RESULTS_GROUP, self._name, {keys.RESULTS: ">"}, count=BATCH, block=block_ms
        )
        return self._parse(found[0][1]) if found else []

    def _claim(self, idle_ms: int, stop: threading.Event | None) -> None:
        """Take over and write what was handed out at least `idle_ms` ago and never acknowledged.

        The entries of a live persister may be among them, which does no harm: what is written twice is there once.
        """
        cursor: Any = "0-0"
        while not (stop and stop.is_set()):
            answer: Any = self._redis.xautoclaim(
                keys.RESULTS, keys.RESULTS_GROUP, self._name, idle_ms, cursor, count=BATCH
            )
            cursor, found = answer[:2]
            entries = self._parse([(each, fields) for each, fields in found if fields])
            if stop is None:
                self._write(entries)
            else:
                self._insist(entries, stop)
            if cursor == b"0-0":
                return

    def _parse(self, found: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Entry]:
        entries = []
        for each, fields in found:
            try:
                request = _REQUEST.validate_json(fields[b"request"])
                reply = Reply.model_validate_json(fields[b"reply"])
                if b"shared" in fields:
                    reply = reply.shared_with(request.id)
                entries.append(Entry(each, fields, request, reply))
            except KeyError as error:
                self._bury(each, fields, f"There is no field {error}.")
            except ValueError as error:
                self._bury(each, fields, str(error))
        return entries

    def _insist(self, entries: list[Entry], stop: threading.Event) -> None:
        """Write entries, however long the store takes to come back; give up only when told to stop."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                self._write(entries)
            except (NoStore, OutdatedStore) as error:
                log.warning("%s Trying again.", error, extra={"action": "store_failed"})
                if stop.wait(wait_s):
                    return
                wait_s = min(2 * wait_s, LAST_WAIT_S)
            else:
                return

    def _write(self, entries: list[Entry]) -> None:
        """Write entries in one transaction; if one of them spoils it, one by one."""
        if not entries:
            return
        try:
            self._store.record_all([(entry.request, entry.reply) for entry in entries])
        except (NoStore, OutdatedStore):
            raise
        except Exception as error:  # noqa: BLE001 - one entry must never stop those behind it
            if len(entries) == 1:
                self._bury(entries[0].id, entries[0].fields, f"{type(error).__name__}: {error}")
                return
            for entry in entries:
                self._write([entry])
        else:
            self._remove([entry.id for entry in entries])
            log.info("Stored %d replies.", len(entries), extra={"action": "stored"})

    def _remove(self, ids: list[bytes]) -> None:
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.xack(keys.RESULTS, keys.RESULTS_GROUP, *ids)
            pipe.xdel(keys.RESULTS, *ids)
            pipe.execute()

    def _bury(self, each: bytes, fields: dict[bytes, bytes], error: str) -> None:
        """Move an entry to the dead ones; in a broker that is full it stays where it is, and is tried again."""
        log.error("The entry %s cannot be stored: %s", each.decode(), error, extra={"action": "buried"})
        text = error.encode("utf-8", "backslashreplace")
        try:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.xadd(
                    keys.RESULTS_DEAD, cast("Any", fields | {b"error": text}), maxlen=DEAD_LENGTH, approximate=True
                )
                pipe.xack(keys.RESULTS, keys.RESULTS_GROUP, each)
                pipe.xdel(keys.RESULTS, each)
                pipe.execute()
        except ResponseError as refused:
            log.error("It could not be put aside either: %s", refused, extra={"action": "not_buried"})


def _own_client(client: Redis) -> Redis:
    """A client of the same broker that gives bytes, whatever an entry holds, and reports every failure."""
    pool = client.connection_pool
    options = pool.connection_kwargs | {
        "decode_responses": False,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    return Redis(connection_pool=ConnectionPool(connection_class=pool.connection_class, **options))
