"""Turns: the lists of a queue, and in which order a worker looks into them.

A queue has one list for each priority and lane. The worker serves the most urgent list that has something, but every
so often a less urgent one has its turn first, so that nothing waits for ever. Within a priority lanes take turns; each
client pushes to a lane of its own while there are no more clients than lanes, so a long backlog of one does not hold up
the others.
"""

from collections.abc import Iterable
from itertools import chain

from drkernel_q.request import Priority

#: Turns of each priority: where all of them have a backlog, what is served is in these proportions.
WEIGHTS = {Priority.INTERACTIVE: 16, Priority.VALIDATION: 4, Priority.TRAINING: 2, Priority.BACKFILL: 1}
#: Lanes of each priority.
LANES = 4


def list_name(queue: str, priority: Priority, lane: int) -> str:
    """Name of one list of a queue; for Celery and kombu it is a queue of its own."""
    return f"{queue}/{priority.value}/{lane}"


def queue_of(name: str) -> str:
    """Name of the queue that a list belongs to."""
    return name.partition("/")[0]


def list_names(queues: Iterable[str]) -> tuple[str, ...]:
    """Name all lists of queues."""
    lists = ((priority, lane) for priority in Priority for lane in range(LANES))
    return tuple(list_name(queue, priority, lane) for priority, lane in lists for queue in queues)


def schedule(weights: dict[Priority, int]) -> tuple[Priority, ...]:
    """Spread the turns of each priority as evenly as they go, the most urgent first (smooth weighted round robin)."""
    total = sum(weights.values())
    credit = dict.fromkeys(weights, 0)
    turns = []
    for _ in range(total):
        for priority, weight in weights.items():
            credit[priority] += weight
        chosen = max(credit, key=lambda priority: credit[priority])
        credit[chosen] -= total
        turns.append(chosen)
    return tuple(turns)


_SCHEDULE = schedule(WEIGHTS)


class Turns:
    """The order of a worker's lists, as kombu's `queue_order_strategy`: see `kombu.utils.scheduling`."""

    def __init__(self) -> None:
        """Begin at the first turn, with no lists."""
        self._turn = 0
        self._lists: dict[Priority, list[str]] = {}

    def update(self, names: Iterable[str]) -> None:
        """Take the names of the lists."""
        self._lists = {priority: [] for priority in Priority}
        for name in names:
            self._lists[_priority(name)].append(name)

    def consume(self, limit: int) -> list[str]:
        """Give the order in which to look now: whose turn it is, then the most urgent first."""
        first = _SCHEDULE[self._turn % len(_SCHEDULE)]
        order = sorted(self._lists, key=lambda priority: (priority is not first, list(Priority).index(priority)))
        return list(chain.from_iterable(self._lists[priority] for priority in order))[:limit]

    def rotate(self, last_used: str) -> str:
        """Note where a message came from: that lane is last in its priority, and the turn is over."""
        lanes = self._lists.get(_priority(last_used), [])
        if last_used in lanes:
            lanes.append(lanes.pop(lanes.index(last_used)))
        self._turn += 1
        return last_used


def _priority(name: str) -> Priority:
    """Read the priority out of a list's name; anything that is not ours goes last."""
    parts = name.split("/")
    known = len(parts) == 3 and parts[1] in set(Priority)  # noqa: PLR2004 - see `list_name`
    return Priority(parts[1]) if known else Priority.BACKFILL
