"""Reading: named queries and trajectories out of the store, read once for all who look at the same time."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from drkernel_q.errors import NoStore
from drkernel_q.store import Store
from drkernel_q.store.named import Value
from drkernel_q.store.query import ask
from drkernel_q.trajectory import Trajectory

Row = dict[str, Any]
_T = TypeVar("_T")

#: How long an answer is believed, seconds, and how many are remembered.
FRESH_S = 2.0
MOST_ANSWERS = 64


class Reading:
    """The store as routes read it: in threads, and never twice for the same question at a time."""

    def __init__(self, store: Store | None) -> None:
        """Read from a store, or from none."""
        self._store = store
        self._answers: OrderedDict[object, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def rows(self, name: str, **values: Value) -> list[Row]:
        """Ask a named query.

        Raises:
            BadInput: there is no such run.
            NoStore: there is no store, or it cannot be reached.
        """
        given = {key: value for key, value in values.items() if value is not None}
        return await self._once((name, tuple(sorted(given.items()))), lambda store: _rows(store, name, given))

    async def trajectory(self, run: str, problem: str, number: int) -> Trajectory | None:
        """Read one trajectory under the verdicts in force; None when it is not there."""
        return await self._once(
            ("trajectory", run, problem, number),
            lambda store: store.trajectory(run, problem, number, revised=True),
        )

    async def _once(self, question: object, read: Callable[[Store], _T]) -> _T:
        """Answer from what was read a moment ago, or with those who ask now."""
        store = self._store
        if store is None:
            raise NoStore("This gateway has no store.")
        asked_at, task = self._answers.get(question, (float("-inf"), None))
        if task is None or (task.done() and time.monotonic() - asked_at > FRESH_S):
            task = asyncio.create_task(asyncio.to_thread(read, store))
            self._answers[question] = (time.monotonic(), task)
            self._answers.move_to_end(question)
            if len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
        # Whoever goes away leaves the answer to the others.
        found: _T = await asyncio.shield(task)
        return found


def _rows(store: Store, name: str, values: Mapping[str, Value]) -> list[Row]:
    with ask(store, name, values) as answer:
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
