"""What must hold after any fault: each request ended once in the store, rightly, and nothing is left of anything."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import text

from drkernel_q.evaluation import Reply
from drkernel_q.persist import Persister
from drkernel_q.queue import keys
from drkernel_q.request import Request
from drkernel_q.store import Store
from tests.queue.conftest import Broker

#: What stays in the broker: of Celery and kombu, of the registry and of the tests.
STAYING = ("drkq:_kombu.", "drkq:unacked", "drkq:clients", "drkq:workers", "drkq:test:", "drkq:poison", keys.RESULTS)
#: What expires by itself; the reply stream is that of a client that was killed.
EXPIRING = tuple(f"drkq:{name}:" for name in ("r", "claim", "content", "flight", "cancel", "worker", "loss", "reply"))


class Stores:
    """Several stores that are written as one: one run of a test serves every kind of database."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = stores

    def record_all(self, pairs: Sequence[tuple[Request, Reply]]) -> list[bool]:
        first, *others = (store.record_all(pairs) for store in self.stores)
        assert all(other == first for other in others)
        return first


def drain(broker: Broker, store: Any) -> None:
    """Write what is still in the stream of results."""
    with broker.client() as client:
        Persister(client, store).drain()


def ends(store: Store) -> dict[str, list[str]]:
    """List how each request of the store ended: outcomes of evaluations, or else the kind of its last failure."""
    found: dict[str, list[str]] = {}
    with store.reading() as connection:
        for name, outcome in connection.execute(text("SELECT request_id, outcome FROM evaluations")):
            found.setdefault(name, []).append(outcome)
        failures = "SELECT request_id, failure_kind FROM attempts WHERE failure_kind IS NOT NULL ORDER BY attempt"
        failed: dict[str, str] = {str(name): str(kind) for name, kind in connection.execute(text(failures))}
    return {name: [kind] for name, kind in failed.items()} | found


def each_once(store: Store, expected: Mapping[str, str]) -> None:
    """Check that every request ended exactly once, and how."""
    found = ends(store)
    assert {name: found.get(name) for name in expected} == {name: [end] for name, end in expected.items()}


def nothing_left_in(broker: Broker) -> None:
    """Check that no request is held, waited for or on its way, and that nothing stays for ever."""
    with broker.client() as client:
        names = set(client.scan_iter("*"))
        strays = sorted(name for name in names if not name.startswith(STAYING + EXPIRING))
        assert not strays, strays
        assert (client.xlen(keys.RESULTS), client.xlen(keys.RESULTS_DEAD)) == (0, 0)
        assert not [name for name in names if name.startswith(EXPIRING) and client.ttl(name) < 0]


def processes_with(mark: str) -> dict[int, str]:
    """Find the living processes that have a text in their environment, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return {pid: name for pid, name in found.items() if name}


def not_there(paths: Iterable[str]) -> bool:
    """Whether none of the files or folders exists any more."""
    return not any(map(os.path.exists, paths))
