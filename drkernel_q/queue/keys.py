"""Every name that drkq writes in Redis; all of them start with `drkq:`, so one ACL pattern covers them."""

#: In front of every key, Celery's own included.
PREFIX = "drkq:"

#: Stream of finished evaluations for the store; an entry has the fields `request` and `reply`, both JSON.
RESULTS = "drkq:results"
#: Consumer group of the persisters on `RESULTS`.
RESULTS_GROUP = "persister"
#: Stream of entries that no persister could write, with the field `error` beside the entry's own.
RESULTS_DEAD = "drkq:results:dead"

#: Set of the ids of workers that announced themselves; an id without its `worker` key has gone.
WORKERS = "drkq:workers"
#: Counter of the clients that connected.
CLIENTS = "drkq:clients"


def reply_stream(client_id: str) -> str:
    """Stream on which one client gets its replies; an entry has the field `reply`, JSON."""
    return f"drkq:reply:{client_id}"


def result(request_id: str) -> str:
    """The reply of a finished request, JSON, for as long as `drkernel_q.queue.ledger.RESULT_TTL_S`."""
    return f"drkq:r:{request_id}"


def claim(request_id: str) -> str:
    """Hash of who works on a request: owner, expires_ms, attempt, fence, finished."""
    return f"drkq:claim:{request_id}"


def waiters(request_id: str) -> str:
    """Set of the reply streams that wait for a request."""
    return f"drkq:waiters:{request_id}"


def cancel(request_id: str) -> str:
    """Present when nobody wants the request any more."""
    return f"drkq:cancel:{request_id}"


def loss(queue: str) -> str:
    """Why the workers of a queue ended for good, in a sentence; present only when somebody gave them up."""
    return f"drkq:loss:{queue}"


def worker(worker_id: str) -> str:
    """Card of a live worker, JSON; it expires when the worker stops refreshing it."""
    return f"drkq:worker:{worker_id}"
