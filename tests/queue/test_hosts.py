"""Three hosts with two workers each: one is cut off, another is restarted in turn, and nothing is lost or doubled."""

import asyncio
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drkernel_q.evaluation import EvaluationRequest, Outcome, Protocol, Reply, Stage
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.queue import keys
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.registry import workers
from drkernel_q.queue.watch import Patience
from drkernel_q.store import Store
from tests.hosts import Host, network, spaces
from tests.need import PATIENT_S, ROOT
from tests.queue.chaos import drain, each_once
from tests.queue.conftest import WORKER, Broker, kill_tree, own_broker, wait_until
from tests.queue.requests import echo_request

pytestmark = [pytest.mark.slow, pytest.mark.redis]
PORT = "6379"
LEASE_S = 4.0
DEVICES = ("cpu", "cpu:1")
#: What the lost host held is found by its leases; a message that was on its way to it when the cable was cut is claimed
#: by nobody, and only the client knows that it is missing.
EAGER = Patience(look_s=1.0, lost_s=2.0)


class Site:
    """A broker on the first host, reached by its address from the others and by its socket from the test."""

    def __init__(self, broker: Broker, url: str, log: Path) -> None:
        self.broker, self.url, self.log = broker, url, log
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, host: Host) -> None:
        for device in DEVICES:
            name = f"{host.name}-{device}-{len(self.running)}"
            environment = {"DRKQ_BROKER_URL": self.url, "ECHO_NAME": name, "ECHO_LEASE_S": str(LEASE_S)}
            environment["PYTHONFAULTHANDLER"] = "1"
            with self.log.open("ab") as log:
                self.running[name] = host.start([*WORKER, "--device", device], environment, log)

    def of(self, host: Host) -> dict[str, "subprocess.Popen[bytes]"]:
        return {name: process for name, process in self.running.items() if name.startswith(host.name)}

    def codes(self, processes: Collection["subprocess.Popen[bytes]"]) -> list[int]:
        """Wait for processes that were told to leave; those that do not are made to say where they are."""
        try:
            return [process.wait(PATIENT_S) for process in processes]
        except subprocess.TimeoutExpired:
            for process in processes:
                process.send_signal(signal.SIGABRT)
                process.wait()
            raise AssertionError(self.log.read_text()) from None

    def serving(self) -> Counter[str]:
        """Count the live workers of each host."""
        with self.broker.client() as client:
            return Counter(card.host for card in workers(client))


@contextmanager
def site(log: Path) -> Iterator[tuple[Site, list[Host]]]:
    with network(4) as (hub, *hosts):
        options = ("--bind", hub.address, "--port", PORT)
        with own_broker(*options, prefix=hub.prefix()) as broker:
            found = Site(broker, f"redis://:secret@{hub.address}:{PORT}/0", log)
            try:
                yield found, hosts
            finally:
                for process in found.running.values():
                    kill_tree(process)


async def wait(done: object, what: str) -> None:
    await asyncio.to_thread(wait_until, done, what)


async def test_a_host_that_vanishes_and_one_that_restarts_cost_nothing(sqlite_template: Path, tmp_path: Path) -> None:
    with site(tmp_path / "workers.log") as (here, hosts):
        for host in hosts:
            here.start(host)
        whole = Counter({host.name: len(DEVICES) for host in hosts})
        await wait(lambda: here.serving() == whole, "six workers serve")
        requests = [echo_request(str(number), sleep=0.25) for number in range(60)]
        gone, restarted, _ = hosts
        async with EvaluationQueue(here.broker.url, patience=EAGER) as queue:
            handles = [await queue.submit(request) for request in requests]
            await handles[5].reply(PATIENT_S)
            gone.cut()
            leaving = here.of(restarted)
            for process in leaving.values():
                process.terminate()  # drained: each finishes what it has
            here.start(restarted)
            replies = [await handle.reply(PATIENT_S) for handle in handles]
            assert [reply.evaluation.stdout for reply in replies if reply.evaluation] == [str(n) for n in range(60)]
            by_host = Counter(reply.worker.split("-")[0] for reply in replies)
            assert set(by_host) <= set(whole), by_host
            assert by_host[hosts[2].name] > 0
            again = [reply for reply in replies if reply.attempt > 1]
            assert len(again) <= len(DEVICES), "only what the lost host held was tried again"

            gone.mend()
            await wait(lambda: here.serving()[gone.name] == len(DEVICES), "the host is back")
            late = [await (await queue.submit(echo_request("late"))).reply(PATIENT_S) for _ in range(6)]
            assert [reply.evaluation.stdout for reply in late if reply.evaluation] == ["late"] * 6
        path = shutil.copy(sqlite_template, tmp_path / "drkq.sqlite")
        with Store.open(f"sqlite:///{path}") as store:
            drain(here.broker, store)
            each_once(store, {reply.id: "correct" for reply in [*replies, *late]})
        with here.broker.client() as client:
            assert client.xlen(keys.RESULTS_DEAD) == 0
        assert here.codes(leaving.values()) == [0] * len(DEVICES)
    assert not spaces()


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_real_workers_on_three_hosts(tmp_path: Path) -> None:
    """The same with `drkq worker` on the cpu device: real judges, one host cut off for good, the others drained."""
    command = [sys.executable, "-m", "drkernel_q", "worker"]
    problem = Problem(name="softmax", source=(ROOT / "drkernel_q/problems/level1/softmax.py").read_text())
    source = (ROOT / "examples/softmax.py").read_text()
    protocol = Protocol(stages=(Stage.CORRECTNESS,), trials=1)
    requests = [
        EvaluationRequest(
            id=f"{number:032x}",
            problem=problem,
            kernel=Kernel(source=f"{source}# {number}\n"),
            protocol=protocol,
            submitted_at="2026-01-01T00:00:00+00:00",
        )
        for number in range(30)
    ]
    with site(tmp_path / "workers.log") as (here, hosts):
        for host in hosts:
            for device in DEVICES:
                environment = {"DRKQ_BROKER_URL": here.url, "DRKQ_STATE_DIR": str(tmp_path / host.name)}
                environment |= {"DRKQ_LOCK_DIR": str(tmp_path / f"{host.name}-locks"), "DRKQ_LANES": "1"}
                with here.log.open("ab") as log:
                    here.running[f"{host.name}-{device}"] = host.start([*command, "--device", device], environment, log)
        await asyncio.to_thread(wait_until, lambda: here.serving().total() == 6, "six workers serve", None, 240)
        async with EvaluationQueue(here.broker.url, patience=EAGER) as queue:
            handles = [await queue.submit(request) for request in requests]
            for handle in handles:  # a host that has answered nothing yet would not be missed
                if (await handle.reply(200)).worker.startswith(hosts[0].name):
                    break
            hosts[0].cut()
            replies = [await handle.reply(300) for handle in handles]
        outcomes = Counter(reply.evaluation.outcome for reply in replies if reply.evaluation)
        assert outcomes == {Outcome.CORRECT: len(requests)}
        assert len({reply.worker.split("-")[0] for reply in replies}) == len(hosts)
        leaving = here.of(hosts[1]) | here.of(hosts[2])
        for process in leaving.values():
            process.terminate()
        assert [await asyncio.to_thread(process.wait, 60) for process in leaving.values()] == [0] * 4
        with here.broker.client() as client:
            ids = [Reply.model_validate_json(fields["reply"]).id for _, fields in client.xrange(keys.RESULTS)]
        assert sorted(ids) == sorted(request.id for request in requests)
