"""A real worker, as `drkq worker` starts it, on the cpu: what it serves, how it ends, and what it survives."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drkernel_q import __version__
from drkernel_q.audit import FlagCode
from drkernel_q.errors import BadProblem, Cancelled
from drkernel_q.evaluation import EvaluationRequest, Integrity, Outcome, Protocol, Stage
from drkernel_q.problem import Problem
from drkernel_q.queue.app import CHECK, EVALUATE, PROFILE, celery_app
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.registry import WorkerCard, WorkerState, workers
from tests.judging import EXAMPLES, builtin
from tests.queue.conftest import Broker, kill_tree, own_broker, wait_until
from tests.values import a_request, an_audit_request

pytestmark = [pytest.mark.slow, pytest.mark.redis]

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
#: Looks for the worker's secrets wherever a process can look, and prints what it finds.
SPY = """
import glob, os, torch

def look():
    for path in (*glob.glob("/proc/*/environ"), *glob.glob("/proc/*/cmdline"), "/proc/self/environ", "/proc/1/environ"):
        try:
            yield open(path).read()
        except OSError:
            pass
    for pid in range(os.getpid() - 200, os.getpid() + 1):
        for name in ("environ", "cmdline", "maps"):
            try:
                yield open(f"/proc/{pid}/{name}").read()
            except OSError:
                pass
    yield from os.environ
    yield from os.environ.values()

words = ("secret", "redis", "DRKQ", "CELERY", "b.sock")
text = chr(0).join(look())
print("looked at", len(text) > 100, "and found", [word for word in words if word in text], flush=True)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
"""
CORRECTNESS = Protocol(trials=1, weight_seeds=1, stages=(Stage.CORRECTNESS,))


def softmax_request(source: str = SOFTMAX, protocol: Protocol | None = None, **more: Any) -> EvaluationRequest:
    protocol = protocol or Protocol(trials=2, timing_budget_s=0.2)
    return a_request(source, problem=builtin("softmax"), protocol=protocol, **{"fresh": True} | more)


def sleeper(seconds: float) -> EvaluationRequest:
    return softmax_request(SLEEPER.replace("SECONDS", str(seconds)), CORRECTNESS)


class Service:
    """A broker and one worker on it."""

    def __init__(self, broker: Broker, worker: "subprocess.Popen[bytes]", environment: dict[str, str]) -> None:
        self.broker = broker
        self.worker = worker
        self.environment = environment

    def cards(self) -> list[WorkerCard]:
        with self.broker.client() as client:
            return workers(client)

    def card(self) -> WorkerCard:
        (card,) = self.cards()
        return card


@contextmanager
def running() -> Iterator[Service]:
    """Start a broker and a worker; wait until the worker's card is up."""
    with own_broker() as broker, tempfile.TemporaryDirectory(prefix="dq-w-", dir="/tmp") as folder:
        environment = os.environ | {"DRKQ_BROKER_URL": broker.url, "DRKQ_LOCK_DIR": f"{folder}/locks"}
        environment |= {"DRKQ_CACHE_DIR": folder, "DRKQ_STORE_URL": "postgresql+psycopg://drkq:secret@nowhere/drkq"}
        command = [sys.executable, "-m", "workers", "--device", "cpu"]
        with Path(folder, "log").open("wb") as log:
            worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        service = Service(broker, worker, environment)
        try:
            wait_until(service.cards, "the worker is registered", worker, limit_s=45)
            yield service
        finally:
            family = descendants(worker.pid)
            kill_tree(worker)
            wait_until(lambda: not alive(family), "all that the worker started ends with it")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running() as service:
        yield service


@pytest.fixture
async def queue(service: Service) -> AsyncIterator[EvaluationQueue]:
    async with EvaluationQueue(service.broker.url) as queue:
        yield queue


async def test_it_registers_with_card_and_versions(service: Service, queue: EvaluationQueue) -> None:
    (card,) = await queue.workers()
    assert card.id.startswith(f"{socket.gethostname()}-cpu-")
    assert (card.device, card.device_kind, card.device_name) == ("cpu", "cpu", "cpu (interpreted)")
    assert card.queues == ("eval.cpu", f"dev.{socket.gethostname()}.cpu")
    assert card.state is WorkerState.IDLE
    assert card.pid in descendants(service.worker.pid)
    assert card.versions["drkq"] == __version__
    assert {"torch", "triton"} <= card.versions.keys()
    assert "no_new_privs" in card.isolation


async def test_it_evaluates(service: Service, queue: EvaluationQueue) -> None:
    handle = await queue.submit(softmax_request())
    reply = await handle
    assert (reply.attempt, reply.failure) == (1, None)
    evaluation = reply.evaluation
    assert evaluation is not None
    assert (evaluation.outcome, evaluation.integrity) == (Outcome.CORRECT, Integrity.CLEAN)
    assert evaluation.timing is not None
    assert evaluation.profile_ratio is not None
    assert reply.worker == service.card().id
    assert evaluation.environment.host == socket.gethostname()


async def test_each_task_takes_its_stages(queue: EvaluationQueue) -> None:
    everything = Protocol(trials=1, weight_seeds=1, timing_budget_s=0.1)
    evaluate, profile, check = await asyncio.gather(
        *(queue.evaluate(softmax_request(protocol=everything), task=task) for task in (EVALUATE, PROFILE, CHECK))
    )
    assert evaluate.timing is not None
    assert evaluate.profile is not None
    assert evaluate.integrity is Integrity.CLEAN
    assert profile.timing is None
    assert profile.profile is not None
    assert profile.integrity is Integrity.UNKNOWN
    assert check.timing is None
    assert check.profile is None
    assert check.integrity is Integrity.CLEAN


async def test_what_it_found_answers_whoever_asks_again(service: Service, queue: EvaluationQueue) -> None:
    first = await (await queue.submit(softmax_request(protocol=CORRECTNESS)))
    again = await (await queue.submit(softmax_request(protocol=CORRECTNESS, fresh=False)))
    assert again == first.shared_with(again.id), "the card says under which conditions the worker works"
    assert first.evaluation is not None
    assert first.evaluation.conditions == service.card().conditions
    checked = await (await queue.submit(softmax_request(protocol=CORRECTNESS, fresh=False), task=CHECK))
    assert not checked.cached, "another task has other stages"


async def test_it_audits_problems_beside_its_evaluations(service: Service, queue: EvaluationQueue) -> None:
    bad = an_audit_request(Problem(name="bad", source="class Model: pass"))
    sound, unusable, evaluation = await asyncio.gather(
        queue.audit(an_audit_request(builtin("softmax"))),
        queue.audit(bad),
        queue.evaluate(softmax_request(protocol=CORRECTNESS)),
    )
    assert (sound.flags, sound.unusable) == ((), None)
    assert sound.environment.device_kind == service.card().device_kind
    assert [flag.code for flag in unusable.flags] == [FlagCode.UNUSABLE], "a fact about the problem, and no error"
    assert evaluation.outcome is Outcome.CORRECT
    assert await queue.device_kinds("cpu") == {"cpu"}


async def test_a_bad_problem_and_a_request_that_is_none_are_answered_and_dropped(
    service: Service, queue: EvaluationQueue
) -> None:
    bad = a_request(SOFTMAX, problem=Problem(name="bad", source="class Model: pass"), protocol=CORRECTNESS)
    with pytest.raises(BadProblem, match="bad defines no get_inputs"):
        await queue.evaluate(bad)
    with celery_app(service.broker.url) as app:
        app.send_task(EVALUATE, args=[{"id": "of another release"}], queue="eval.cpu/interactive/0")
    assert (await queue.evaluate(softmax_request(protocol=CORRECTNESS))).outcome is Outcome.CORRECT
    assert service.card().state is WorkerState.IDLE


async def test_a_candidate_finds_no_secret_of_the_worker(queue: EvaluationQueue) -> None:
    evaluation = await queue.evaluate(softmax_request(SPY, CORRECTNESS))
    assert evaluation.outcome is Outcome.CORRECT
    assert evaluation.stdout == "looked at True and found []\n"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (SOFTMAX + "\n\nraise OSError('\\udc80')\n", "OSError: ?\n"),
        ("text = '\udc80'\n" + SOFTMAX, "surrogates not allowed\n"),
    ],
    ids=["error", "source"],
)
async def test_text_that_is_no_unicode_does_not_keep_an_answer_back(
    queue: EvaluationQueue, source: str, error: str
) -> None:
    evaluation = await queue.evaluate(softmax_request(source, CORRECTNESS), timeout_s=20)
    assert evaluation.outcome is Outcome.COMPILE_ERROR
    assert str(evaluation.error).endswith(error)


def test_a_second_worker_on_the_device_is_refused(service: Service) -> None:
    command = [sys.executable, "-m", "workers", "--device", "cpu"]
    second = subprocess.run(command, env=service.environment, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == os.EX_UNAVAILABLE
    assert f"cpu is held by process {service.worker.pid}" in second.stderr
    assert "Traceback" not in second.stderr


async def test_a_cancelled_evaluation_is_ended_and_the_next_one_taken(service: Service, queue: EvaluationQueue) -> None:
    handle = await queue.submit(sleeper(50))
    await until(lambda: has_source(service.worker.pid), "the candidate runs")
    family = in_private_folders(service.worker.pid)
    start = time.monotonic()
    handle.cancel()
    with pytest.raises(Cancelled):
        await handle
    evaluation = await queue.evaluate(softmax_request(protocol=CORRECTNESS))
    assert evaluation.outcome is Outcome.CORRECT
    assert time.monotonic() - start < 6
    assert not alive(family), "the candidate, its judge's work and its daemon are over"
    assert not [folder for folder in family.values() if Path(folder).exists()]


async def test_a_pool_child_that_dies_costs_one_attempt_and_leaves_nothing(
    service: Service, queue: EvaluationQueue
) -> None:
    handle = await queue.submit(sleeper(3))
    await until(lambda: has_source(service.worker.pid), "the candidate runs")
    before = service.card()
    assert before.state is WorkerState.BUSY
    assert before.request_id == handle.id
    family = in_private_folders(service.worker.pid)
    os.kill(before.pid, signal.SIGKILL)
    await until(lambda: not alive(family), "the candidate and its daemon have ended")
    await until(lambda: not any(Path(folder).exists() for folder in family.values()), "their folder is gone")
    reply = await handle.reply(timeout_s=45)
    assert reply.attempt == 2
    assert reply.evaluation is not None
    assert reply.evaluation.outcome is Outcome.CORRECT
    after = service.card()
    assert after.id == before.id
    assert after.pid != before.pid


async def test_sigterm_finishes_the_evaluation_and_leaves_nothing() -> None:
    with running() as service:
        async with EvaluationQueue(service.broker.url) as queue:
            handle = await queue.submit(sleeper(3))
            await until(lambda: has_source(service.worker.pid), "the candidate runs")
            family = descendants(service.worker.pid)
            folders = set(in_private_folders(service.worker.pid).values())
            service.worker.send_signal(signal.SIGTERM)
            reply = await handle.reply(timeout_s=30)
            assert reply.attempt == 1
            assert reply.evaluation is not None
            assert reply.evaluation.outcome is Outcome.CORRECT
            await until(lambda: service.worker.poll() is not None, "the worker has left")
            assert service.worker.returncode == 0
            assert not alive(family)
            assert not [folder for folder in folders if Path(folder).exists()]
            assert service.cards() == []


async def until(condition: Any, what: str) -> None:
    """Wait for a condition without holding up the queue's client."""
    await asyncio.to_thread(wait_until, condition, what)


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


def alive(pids: Any) -> list[int]:
    """List those of the processes that still run."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
