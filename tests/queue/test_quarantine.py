"""A device that is not well any more, from the first look to the way back into service, with real workers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drkernel_q.errors import DeviceQuarantined, NoWorker
from drkernel_q.evaluation import EvaluationRequest, Outcome, Protocol, Stage
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.registry import WorkerCard, WorkerState, workers
from drkernel_q.queue.watch import Patience
from tests.faulty import named
from tests.judging import EXAMPLES, builtin
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, kill_tree, own_broker, wait_until
from tests.sick import SickDevice
from tests.values import a_request

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.redis]

SOFTMAX = (EXAMPLES / "softmax.py").read_text()
QUICK = Protocol(trials=1, weight_seeds=1, stages=(Stage.CORRECTNESS,))


class Site:
    """A broker, and the commands of a machine whose state is in a folder of the test's."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.environment = os.environ | {"DRKQ_BROKER_URL": broker.url, "DRKQ_CACHE_DIR": str(folder / "cache")}
        self.environment |= {"DRKQ_STATE_DIR": str(folder / "state")}
        self.started: list[subprocess.Popen[bytes]] = []

    def worker(self, device: str, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "workers", "--device", device]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment | environment, stdout=log, stderr=log, start_new_session=True
            )
        self.started.append(process)
        return process

    def drkq(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "drkernel_q", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENT_S, check=False
        )

    def card(self, device: str) -> WorkerCard | None:
        with self.broker.client() as client:
            return next((card for card in workers(client) if card.device == device), None)

    def wait_for(self, device: str, *states: WorkerState) -> WorkerCard:
        def there() -> bool:
            card = self.card(device)
            return card is not None and card.state in states

        wait_until(there, f"{device} is {states}")
        card = self.card(device)
        assert card is not None
        return card


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    with own_broker() as broker:
        found = Site(broker, folder)
        try:
            yield found
        finally:
            for process in found.started:
                kill_tree(process)


def request(source: str) -> EvaluationRequest:
    return a_request(source, problem=builtin("softmax"), protocol=QUICK)


async def test_from_the_first_complaint_to_the_way_back(tmp_path: Path) -> None:
    sick = SickDevice(tmp_path)
    with site(tmp_path) as here:
        first = here.worker("cpu", sick.environment | {"DRKQ_LANES": "2"})
        here.wait_for("cpu", WorkerState.IDLE)
        patience = Patience(worker_s=0.5, look_s=600)  # without the watch, which would tell who waits at once
        async with EvaluationQueue(here.broker.url, patience=patience) as queue:
            sick.complain(1000)
            handle = await queue.submit(request(named("segfault").source), device="cpu")
            card = await asyncio.to_thread(here.wait_for, "cpu", WorkerState.QUARANTINED)
            assert card.reason == "The canary found that 7 of 8192 products are wrong."
            assert (card.queues, card.accepts, card.request_id) == ((), False, None)
            assert not handle.done(), "nothing was said about a kernel by a device that is not well"
            assert first.poll() is None, "the worker stays and waits"
            with pytest.raises(NoWorker, match=r"cpu of .* is quarantined since .*: The canary found"):
                await queue.evaluate(request(SOFTMAX), device="cpu")

            await asyncio.to_thread(look_at_the_status, here)
            refused = await asyncio.to_thread(here.drkq, "worker", "--device", "cpu")
            assert refused.returncode == DeviceQuarantined.exit_code
            assert "is quarantined since" in refused.stderr
            assert "drkq worker --device cpu --clear-quarantine" in refused.stderr
            assert "Traceback" not in refused.stderr

            here.worker("cpu:1", {})
            reply = await handle.reply(timeout_s=PATIENT_S)
            assert reply.worker != card.id, "the delivery was given back, and another worker took it"
            assert reply.evaluation is not None
            assert (reply.evaluation.outcome, reply.evaluation.fault) == (Outcome.CRASHED, "signal:SIGSEGV")

            sick.complain(0)
            cleared = await asyncio.to_thread(here.drkq, "worker", "--device", "cpu", "--clear-quarantine")
            assert (cleared.returncode, cleared.stdout) == (0, "")
            assert "cpu is back in service. It was quarantined since" in cleared.stderr
            back = await asyncio.to_thread(here.wait_for, "cpu", WorkerState.IDLE)
            assert back.id.startswith(f"{card.id}."), "the worker that waited goes on"
            evaluation = await queue.evaluate(request(SOFTMAX), device="cpu:1")
            assert evaluation.outcome is Outcome.CORRECT
            assert json.loads(here.drkq("status", "--json").stdout)["quarantined"] == []
            again = here.drkq("worker", "--device", "cpu", "--clear-quarantine")
            assert (again.returncode, again.stderr) == (0, "cpu was not quarantined.\n")
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENT_S) == 0


def look_at_the_status(here: Site) -> None:
    found = json.loads(here.drkq("status", "--json").stdout)
    (worker,) = found["workers"]
    assert (worker["state"], worker["queues"]) == ("quarantined", [])
    (device,) = found["quarantined"]
    assert (device["device"], device["reason"]) == ("cpu", worker["reason"])
    assert device["evidence"][0] == "Before the look: a process ended with signal:SIGSEGV."
    shown = here.drkq("status").stdout
    assert "quarantined" in shown
    assert device["remedy"] in shown
