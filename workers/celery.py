"""The Celery app of a worker: `celery -A workers worker -P prefork -c LANES`, as `drkq worker` starts it."""

import logging
import sys
from typing import Any

from billiard.process import current_process  # type: ignore[import-untyped]
from celery.signals import worker_process_init

from drkernel_q.journal import journal
from drkernel_q.queue.app import celery_app
from drkernel_q.settings import load_settings
from workers import task
from workers.isolation import linux

# The environment of this process holds the broker's password; nobody of the same user may read it.
linux.prctl(linux.PR_SET_DUMPABLE, 0)

settings = load_settings()
app = celery_app(settings)
_worker: task.Worker | None = None


@worker_process_init.connect  # type: ignore[untyped-decorator]
def start(**_: Any) -> None:
    """Get ready in the pool child, which has a connection and a zygote of its own."""
    global _worker  # noqa: PLW0603 - one worker a process is what a pool child is
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.die_with_parent(9)
    task.journal.addHandler(journal(sys.__stderr__))  # Celery has put something else in its place
    task.journal.setLevel(logging.INFO)
    task.journal.propagate = False
    _worker = task.make_worker(app, settings, current_process().index)


def worker() -> task.Worker:
    """Return this pool child's worker."""
    if _worker is None:
        raise RuntimeError("a task ran outside of a pool child; start the worker with `-P prefork`")
    return _worker


task.register(app, worker)
