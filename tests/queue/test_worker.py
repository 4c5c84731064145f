"""A real worker, as `drkq worker` starts it, on the cpu: what it serves, how it ends, and what it survives."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from drkernel_q import __version__
from drkernel_q.audit import FlagCode
from drkernel_q.errors import BadProblem, Cancelled
from drkernel_q.evaluation import Integrity, Outcome, Protocol
from drkernel_q.lock import Lease, cpu_identity
from drkernel_q.problem import Problem
from drkernel_q.queue import keys
from drkernel_q.queue.app import CHECK, EVALUATE, PROFILE, celery_app
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.message import list_keys
from drkernel_q.queue.registry import WorkerState
from tests.judging import builtin
from tests.need import PATIENT_S
from tests.queue.real_worker import (
    CORRECTNESS,
    SOFTMAX,
    Service,
    alive,
    descendants,
    has_source,
    in_private_folders,
    running,
    sleeper,
    softmax_request,
    until,
)
from tests.values import a_request, an_audit_request

pytestmark = [pytest.mark.slow, pytest.mark.redis]

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
    lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    begin, end = [line for line in lines if line["evaluation"] == handle.id]
    assert (begin["action"], end["action"], end["outcome"], end["worker"]) == ("begin", "end", "correct", reply.worker)
    assert end["pid"] in descendants(service.worker.pid)  # the judge, which is kept


async def test_an_evaluation_waits_while_somebody_trains_on_the_device(
    service: Service, queue: EvaluationQueue
) -> None:
    with Lease(Path(service.environment["DRKQ_LOCK_DIR"]), cpu_identity()) as lease:
        assert lease.take(alone=True)
        handle = await queue.submit(softmax_request(protocol=CORRECTNESS))
        await asyncio.sleep(1)
        assert not handle.done()
        assert service.card().state is WorkerState.IDLE
        lease.let_go()
        reply = await handle
        await until(lambda: lease.take(alone=True), "it lets go of the device after its reply")
    assert (reply.attempt, reply.failure) == (1, None)


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
    evaluation = await queue.evaluate(softmax_request(source, CORRECTNESS), timeout_s=PATIENT_S)
    assert evaluation.outcome is Outcome.COMPILE_ERROR
    assert str(evaluation.error).endswith(error)


def test_a_second_worker_on_the_device_is_refused(service: Service) -> None:
    command = [sys.executable, "-m", "workers", "--device", "cpu"]
    second = subprocess.run(
        command, env=service.environment, capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
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
    assert time.monotonic() - start < 40, "it would have slept for 50 s"
    assert not alive(family), "the candidate, its judge's work and its daemon are over"
    assert not [folder for folder in family.values() if Path(folder).exists()]


async def test_told_twice_to_leave_it_gives_back_what_it_has(service: Service, queue: EvaluationQueue) -> None:
    """Last of those that use this worker: it is gone afterwards."""
    handle = await queue.submit(sleeper(50))
    await until(lambda: has_source(service.worker.pid), "the candidate runs")
    family = descendants(service.worker.pid)
    service.worker.send_signal(signal.SIGTERM)
    await until(lambda: service.card().state is WorkerState.DRAINING, "the card says so")
    service.worker.send_signal(signal.SIGTERM)
    await until(lambda: service.worker.poll() is not None, "the worker has left")
    assert service.worker.returncode == 0
    assert not alive(family)
    with service.broker.client() as client:
        record: Any = client.hgetall(keys.claim(handle.id))
        waiting = sum(map(client.llen, list_keys("eval.cpu")))  # type: ignore[arg-type]
    assert (record["state"], record["attempt"], record["deaths"]) == ("released", "0", "0")
    assert waiting == 1


async def test_sigterm_finishes_the_evaluation_and_leaves_nothing() -> None:
    with running() as service:
        async with EvaluationQueue(service.broker.url) as queue:
            handle = await queue.submit(sleeper(3))
            await until(lambda: has_source(service.worker.pid), "the candidate runs")
            family = descendants(service.worker.pid)
            folders = set(in_private_folders(service.worker.pid).values())
            service.worker.send_signal(signal.SIGTERM)
            reply = await handle.reply(timeout_s=PATIENT_S)
            assert reply.attempt == 1
            assert reply.evaluation is not None
            assert reply.evaluation.outcome is Outcome.CORRECT
            await until(lambda: service.worker.poll() is not None, "the worker has left")
            assert service.worker.returncode == 0
            assert not alive(family)
            assert not [folder for folder in folders if Path(folder).exists()]
            assert service.cards() == []
