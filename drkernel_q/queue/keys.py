"""Every name that drkq writes in Redis; all of them start with `drkq:`, so one ACL pattern covers them."""

#: In front of every key, Celery's own included.
PREFIX = "drkq:"

#: Stream of finished evaluations for the store; an entry has the fields `request` and `reply`, both JSON, and `shared`
#: when the reply is that of another request for the same thing.
RESULTS = "drkq:results"
#: Consumer group of the persisters on `RESULTS`.
RESULTS_GROUP = "persister"
#: Stream of entries that no persister could write, with the field `error` beside the entry's own.
RESULTS_DEAD = "drkq:results:dead"

#: Stream of requests that cost too many workers, with the replies that they got.
POISON = "drkq:poison"
#: Sorted set of the ids of claimed requests, by the end of their leases, ms of the broker's clock.
LEASES = "drkq:leases"

#: Set of the ids of workers that announced themselves; an id without its `worker` key has gone.
WORKERS = "drkq:workers"
#: Counter of the clients that connected.
CLIENTS = "drkq:clients"


def moment_ms(entry_id: object) -> int:
    """When an entry was added to a stream, ms of the broker's clock, by its id."""
    text = entry_id.decode() if isinstance(entry_id, bytes) else str(entry_id)
    return int(text.partition("-")[0])


def reply_stream(client_id: str) -> str:
    """Stream on which one client gets its replies; an entry has the fields `for`, an id, and `reply`, JSON."""
    return f"drkq:reply:{client_id}"


def promises(gateway: str) -> str:
    """Hash of the orders that a gateway accepted and has no reply to: id to the order, JSON."""
    return f"drkq:promises:{gateway}"


def result(request_id: str) -> str:
    """The reply of a finished request, JSON, for as long as `drkernel_q.queue.ledger.RESULT_TTL_S`."""
    return f"drkq:r:{request_id}"


def claim(request_id: str) -> str:
    """Hash of who works on a request and what became of it (`drkernel_q.queue.scripts`)."""
    return f"drkq:claim:{request_id}"


def waiters(request_id: str) -> str:
    """Set of the reply streams that wait for a request."""
    return f"drkq:waiters:{request_id}"


def followers(request_id: str) -> str:
    """Hash of the other requests that get this one's reply: id to reply stream, newline, request as JSON."""
    return f"drkq:followers:{request_id}"


def content(content_key: str) -> str:
    """Id of a finished request, whose reply is good for every request with this content key."""
    return f"drkq:content:{content_key}"


def flight(flight_key: str) -> str:
    """Hash of the request under way that others like it wait for: id, urgency, list."""
    return f"drkq:flight:{flight_key}"


def cancel(request_id: str) -> str:
    """Present when nobody wants the request any more."""
    return f"drkq:cancel:{request_id}"


def loss(queue: str) -> str:
    """Why the workers of a queue ended for good, in a sentence; present only when somebody gave them up."""
    return f"drkq:loss:{queue}"


def worker(worker_id: str) -> str:
    """Card of a live worker, JSON; it expires when the worker stops refreshing it."""
    return f"drkq:worker:{worker_id}"
