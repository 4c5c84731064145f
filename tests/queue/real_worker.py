"""A real worker on the cpu device for tests, and a look at the processes that it has."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drkernel_q.evaluation import EvaluationRequest, Protocol, Stage
from drkernel_q.queue.registry import WorkerCard, workers
from tests.judging import EXAMPLES, builtin
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, kill_tree, own_broker, wait_until
from tests.values import a_request

SOFTMAX = (EXAMPLES / "softmax.py").read_text()
#: Softmax by torch, after `SECONDS` of sleep; leaves a daemon behind.
SLEEPER = """
import os, time, torch
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 1024)
        time.sleep(1000)
    os._exit(0)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        time.sleep(SECONDS)
        return torch.softmax(x, -1)
"""
CORRECTNESS = Protocol(trials=1, weight_seeds=1, stages=(Stage.CORRECTNESS,))


def softmax_request(source: str = SOFTMAX, protocol: Protocol | None = None, **more: Any) -> EvaluationRequest:
    protocol = protocol or Protocol(trials=2, timing_budget_s=0.2)
    return a_request(source, problem=builtin("softmax"), protocol=protocol, **{"fresh": True} | more)


def sleeper(seconds: float, trials: int = 1) -> EvaluationRequest:
    protocol = CORRECTNESS.model_copy(update={"trials": trials})
    return softmax_request(SLEEPER.replace("SECONDS", str(seconds)), protocol)


class Service:
    """A broker and one worker on it."""

    worker: "subprocess.Popen[bytes]"

    def __init__(self, broker: Broker, folder: Path, lanes: int) -> None:
        self.broker = broker
        self.log = folder / "log"
        self.environment = os.environ | {"DRKQ_BROKER_URL": broker.url, "DRKQ_LOCK_DIR": f"{folder}/locks"}
        self.environment |= {
            "DRKQ_CACHE_DIR": str(folder),
            "DRKQ_LANES": str(lanes),
            "DRKQ_STORE_URL": "postgresql+psycopg://drkq:secret@no/drkq",
        }

    def cards(self) -> list[WorkerCard]:
        with self.broker.client() as client:
            return workers(client)

    def card(self) -> WorkerCard:
        (card,) = self.cards()
        return card

    def start_worker(self) -> None:
        """Start a worker, once the one before has ended, and wait until its card is up."""
        command = [sys.executable, "-m", "workers", "--device", "cpu"]
        with self.log.open("ab") as log:
            self.worker = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        name, lanes = f"-{self.worker.pid}", int(self.environment["DRKQ_LANES"])
        mine = lambda: [card for card in self.cards() if card.id.partition(".")[0].endswith(name)]  # noqa: E731
        registered = lambda: len(mine()) == lanes  # noqa: E731
        wait_until(registered, "the worker is registered", self.worker)


@contextmanager
def running(lanes: int = 1) -> Iterator[Service]:
    """Start a broker and a worker; wait until the worker's card is up, or those of all its lanes."""
    with own_broker() as broker, tempfile.TemporaryDirectory(prefix="dq-w-", dir="/tmp") as folder:
        service = Service(broker, Path(folder), lanes)
        try:
            service.start_worker()
            yield service
        finally:
            family = descendants(service.worker.pid)
            kill_tree(service.worker)
            wait_until(lambda: not alive(family), "all that the worker started ends with it")


async def until(condition: Any, what: str, limit_s: float = PATIENT_S) -> None:
    """Wait for a condition without holding up the queue's client."""
    await asyncio.to_thread(wait_until, condition, what, limit_s=limit_s)


def descendants(pid: int) -> list[int]:
    """List the living processes that a process has started, and those that they have."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                found += [child, *descendants(child)]
    except OSError:
        pass
    return found


def in_private_folders(pid: int) -> dict[int, str]:
    """Give the descendants of a process that work in the folder of a candidate, with that folder."""
    found = {}
    for child in descendants(pid):
        try:
            folder = os.readlink(f"/proc/{child}/cwd")
        except OSError:
            continue
        if "drkq-candidate-" in folder:
            found[child] = folder
    return found


def has_source(pid: int) -> bool:
    """Whether one of the candidates has a source: spare ones wait for theirs."""
    return any(Path(folder, "candidate.py").exists() for folder in in_private_folders(pid).values())


def alive(pids: Iterable[int]) -> list[int]:
    """List those of the processes that still run."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in state(pid)]


def state(pid: int) -> str:
    """Give the letter that the kernel has for what a process does; `Z` for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
