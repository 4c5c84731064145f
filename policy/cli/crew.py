"""Crew: the training runs of an ablation as processes, several at once, and how they end together."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine import make_url

from drkernel_q.settings import Settings

INTERRUPTED = 130
_POLL_S = 0.1


class Job(NamedTuple):
    """One run to be trained."""

    name: str
    plan: Path
    """Its configuration, a TOML file; its log and, where there are several at once, its store are beside it."""
    resume: bool


class Ended(NamedTuple):
    """A run whose process is over."""

    job: Job
    code: int


def train_all(jobs: Sequence[Job], at_once: int, settings: Settings) -> Iterator[Ended]:
    """Train runs, at most so many at once, and yield each that ended; after one that failed no other is begun.

    Several at once have a store each, a copy of the store as it is now: SQLite has one writer at a time. Ctrl-C and
    SIGTERM end all, which save.
    """
    todo, running, stopped = list(jobs), dict[str, tuple[Job, subprocess.Popen[Any]]](), list[int]()
    with _signals(running, stopped):
        while running or (todo and not stopped):
            while todo and not stopped and len(running) < at_once:
                job = todo.pop(0)
                running[job.name] = (job, _start(job, _environment(job, at_once, settings)))
            for name, (job, child) in list(running.items()):
                if (code := child.poll()) is not None:
                    del running[name]
                    stopped += [code] if code else []
                    yield Ended(job, code)
            time.sleep(_POLL_S)


def _start(job: Job, environment: Mapping[str, str]) -> "subprocess.Popen[Any]":
    """Train one run as people do; its standard output goes to a file."""
    command = [sys.executable, "-m", "drkernel_q", "train", "--config", str(job.plan), "--run", job.name]
    with job.plan.with_suffix(".log").open("a", encoding="utf-8") as log:
        return subprocess.Popen([*command, *(["--resume"] if job.resume else [])], stdout=log, env=environment)


def _environment(job: Job, at_once: int, settings: Settings) -> dict[str, str]:
    environment = dict(os.environ)
    if at_once > 1:
        threads = max((os.cpu_count() or 1) // at_once, 1)
        environment.setdefault("OMP_NUM_THREADS", str(threads))  # or each takes all cores
        if (origin := make_url(settings.store).database) and settings.store.startswith("sqlite"):
            environment["DRKQ_STORE_URL"] = f"sqlite:///{_own_store(Path(origin), job.plan.with_suffix('.sqlite'))}"
    return environment


def _own_store(origin: Path, target: Path) -> Path:
    """Copy a store, unless the run has its own already."""
    if not target.exists() and origin.exists():
        part = target.with_suffix(".part")
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(origin)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
        part.rename(target)
    return target.absolute()


@contextmanager
def _signals(running: Mapping[str, tuple[Job, "subprocess.Popen[Any]"]], stopped: list[int]) -> Iterator[None]:
    """Let signals end the children, which save, and not this process, which then says what to do."""

    def interrupt(*_: object) -> None:  # the terminal sends it to all
        stopped.append(INTERRUPTED)

    def terminate(*_: object) -> None:
        stopped.append(INTERRUPTED)
        for _, child in running.values():
            child.terminate()

    before = {
        number: signal.signal(number, handler)
        for number, handler in {signal.SIGINT: interrupt, signal.SIGTERM: terminate}.items()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
