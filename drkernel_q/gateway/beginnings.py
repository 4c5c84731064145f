"""Beginnings: which evaluation a client's own name for a task stands for."""

from collections import OrderedDict

from drkernel_q.gateway.access import Client
from drkernel_q.value import content_hash

#: Tasks that were begun anew, of which the number of the last beginning is remembered.
MOST_ANEW = 10_000


class Beginnings:
    """Which beginning of each task counts: a task that failed for no fault of its own may be sent again."""

    def __init__(self) -> None:
        """Every task has begun once."""
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()

    def id(self, client: Client, task_id: str) -> str:
        """Name the evaluation of a task: the same one again for whoever asks, also after a restart."""
        number = self._numbers.get((client.name, task_id), 0)
        return content_hash("kernelgym", client.name, task_id, str(number)).partition(":")[2]

    def begin_anew(self, client: Client, task_id: str) -> None:
        """Let the next order of this name be another evaluation."""
        self._numbers[(client.name, task_id)] = self._numbers.pop((client.name, task_id), 0) + 1
        if len(self._numbers) > MOST_ANEW:
            self._numbers.popitem(last=False)
