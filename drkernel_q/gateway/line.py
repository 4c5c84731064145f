"""The line: in which order accepted submissions go to the broker.

Priorities take turns in the proportions of the broker's own (`drkernel_q.queue.turns`); within a priority clients take
turns, one submission each; within a client it is first come, first served.
"""

from collections import OrderedDict, deque

from drkernel_q.gateway.submission import Submission
from drkernel_q.queue.turns import WEIGHTS, schedule
from drkernel_q.request import Priority


class Line:
    """Submissions that wait for their turn."""

    def __init__(self) -> None:
        """Begin empty."""
        self._queues: dict[Priority, OrderedDict[str, deque[Submission]]] = {each: OrderedDict() for each in Priority}
        self._schedule = schedule(WEIGHTS)
        self._turn = 0
        self._length = 0

    def __len__(self) -> int:
        """Count what waits."""
        return self._length

    def push(self, submission: Submission) -> None:
        """Take a place behind the client's own."""
        self._queues[submission.priority].setdefault(submission.client, deque()).append(submission)
        self._length += 1

    def pop(self) -> Submission | None:
        """Take out whose turn it is; None when nothing waits."""
        return self._take(self._next_priority()) if self._length else None

    def remove(self, submission: Submission) -> None:
        """Take out a submission that is not wanted any more, if it still waits."""
        queues = self._queues[submission.priority]
        queue = queues.get(submission.client, deque())
        if submission in queue:
            queue.remove(submission)
            self._length -= 1
            if not queue:
                del queues[submission.client]

    def waiting(self) -> dict[str, int]:
        """Count what waits by priority."""
        return {each.value: sum(map(len, self._queues[each].values())) for each in Priority}

    def _next_priority(self) -> Priority:
        for step in range(len(self._schedule)):
            priority = self._schedule[(self._turn + step) % len(self._schedule)]
            if self._queues[priority]:
                self._turn = (self._turn + step + 1) % len(self._schedule)
                return priority
        raise LookupError("nothing waits")

    def _take(self, priority: Priority) -> Submission:
        queues = self._queues[priority]
        client, queue = next(iter(queues.items()))
        submission = queue.popleft()
        self._length -= 1
        if queue:
            queues.move_to_end(client)
        else:
            del queues[client]
        return submission
