"""Supervisor: the process behind `drkq worker`. It locks the device and runs Celery on it."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from redis import Redis, RedisError

from drkernel_q import quarantine
from drkernel_q.errors import BadSettings, DeviceQuarantined, MissingExtra, NoWorker
from drkernel_q.local.process import tether
from drkernel_q.queue.app import queue_names
from drkernel_q.queue.connection import broker_url, connect
from drkernel_q.queue.registry import (
    WorkerCard,
    WorkerState,
    announce,
    give_up,
    withdraw,
    workers,
)
from drkernel_q.queue.turns import list_names
from drkernel_q.settings import Settings, without_password
from workers.device import Device, find_device, lane_id, lanes_of, lock_device
from workers.isolation import linux, sandbox
from workers.presence import Presence

#: A Celery that ends within this time of its start counts as a quick failure; after `MOST_QUICK` of them we give up.
QUICK_S = 20.0
MOST_QUICK = 3
#: An evaluation at hand when the worker is told to leave has this long; orchestrators kill after 30 s or more. What is
#: given back, Celery has this long for.
DRAIN_S = 25.0
QUIT_S = 10.0
JOIN_S = 5.0
_POLL_S = 0.2


class Supervisor:
    """Runs one worker on one device until it is told to stop."""

    def __init__(self, settings: Settings, device_name: str, say: Callable[[str], None]) -> None:
        """Find and lock the device.

        Raises:
            NoDevice, DeviceBusy: it cannot be had.
            DeviceQuarantined: it is out of service.
            MissingExtra: torch or triton is not installed.
        """
        for package in ("torch", "triton"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtra(f"A worker needs {package}; add it with `pip install 'drkq[worker]'`.")
        self.settings = settings
        self.device: Device = find_device(device_name)
        if (found := self._quarantine()) is not None:
            since = f"{self.device.name} ({found.identity}) is quarantined since {found.since}"
            raise DeviceQuarantined(f"{since}: {found.reason} {found.remedy}")
        self.lock = lock_device(self.device, settings.lock_dir)
        self.say = say
        self.id = f"{socket.gethostname()}-{self.device.name}-{os.getpid()}"
        self.stopping = threading.Event()
        self.child: subprocess.Popen[bytes] | None = None
        self.lanes = lanes_of(self.device, settings.lanes)
        self.ids = [lane_id(self.id, number, self.lanes) for number in range(self.lanes)]
        self.presence = Presence(connect(settings), self.ids, list_names(self._queues()))
        self._leave_by = float("inf")
        self._quitting = False

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then finish the evaluation at hand, and leave.

        One that takes longer than `DRAIN_S` is given back, and so it is on a second signal.

        Raises:
            NoWorker: Celery cannot be kept running.
            BadSettings: the sandbox is to be strict, and cannot be.
        """
        self._check_sandbox()
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        redis = connect(self.settings)
        redis.ping()
        ended = threading.Event()
        presence = threading.Thread(target=self.presence.run, args=(ended,), daemon=True)
        presence.start()
        lanes = f", {self.lanes} evaluations at a time" if self.lanes > 1 else ""
        self.say(f"worker on {self.device.name} ({self.device.device_name}{lanes})")
        try:
            self._keep_celery(redis)
        finally:
            self.stopping.set()
            ended.set()
            presence.join(JOIN_S)  # so that it does not put the cards up again
            self._withdraw(redis)

    def _check_sandbox(self) -> None:
        if self.settings.sandbox != "strict":
            return
        held = sandbox.probe(sandbox.probing_uid())
        missing = [name for name, holds in held.items() if not holds]
        if missing:
            raise BadSettings(f"The sandbox is to be strict, and this machine lacks: {', '.join(missing)}.")

    def _stop(self, _number: int, _frame: object) -> None:
        if self.child is not None and self.child.poll() is None:
            # Celery finishes its task on the first TERM and gives it back on a QUIT.
            self.child.send_signal(signal.SIGQUIT if self.stopping.is_set() else signal.SIGTERM)
        self._leave_by = min(self._leave_by, time.monotonic() + DRAIN_S)
        self.presence.draining = True
        self.stopping.set()

    def _keep_celery(self, redis: Redis) -> None:
        quick = 0
        while not self.stopping.is_set():
            if (found := self._quarantine()) is not None:
                self._rest(redis, found)
                quick = 0
                continue
            started = time.monotonic()
            self.child = self._start_celery()
            while self.child.poll() is None:
                time.sleep(_POLL_S)
                self._hurry(self.child)
            if self.stopping.is_set():
                return
            quick = quick + 1 if time.monotonic() - started < QUICK_S else 1
            self.say(f"the worker on {self.device.name} ended with code {self.child.returncode}")
            if quick >= MOST_QUICK:
                raise NoWorker(
                    f"The worker on {self.device.name} ended {quick} times right after its start; see above."
                )
            self.stopping.wait(2.0**quick)

    def _hurry(self, child: "subprocess.Popen[bytes]") -> None:
        """End a Celery that takes too long to leave, or that is deaf."""
        if self.presence.deaf.is_set():
            self.presence.deaf.clear()
            self.say(f"the worker on {self.device.name} takes nothing though there is something; it is started anew")
            child.kill()  # what it may hold is delivered again when it is back
        elif time.monotonic() >= self._leave_by + QUIT_S:
            child.kill()
        elif time.monotonic() >= self._leave_by and not self._quitting:
            self._quitting = True
            child.send_signal(signal.SIGQUIT)

    def _quarantine(self) -> quarantine.Quarantine | None:
        return quarantine.find(self.settings.state_dir, self.device.identity)

    def _rest(self, redis: Redis, found: quarantine.Quarantine) -> None:
        """Take nothing, and say why, until somebody puts the device back into service."""
        text = f"{self.device.name} of {found.host} is quarantined since {found.since}: {found.reason}"
        self.say(f"{text} {found.remedy}")
        self.presence.resting = self._resting_card(found)
        with suppress(RedisError):  # the card comes up when the broker does
            self._withdraw(redis)  # or lanes that are gone would be believed to serve until their cards expire
            announce(redis, self.presence.resting)
            others = [card for card in workers(redis) if card.id not in self.ids]
            served = {queue for card in others for queue in card.queues}
            give_up(redis, set(self._queues()) - served, text)
        while not self.stopping.is_set() and self._quarantine() is not None:
            self.stopping.wait(_POLL_S)
        self.presence.resting = None
        with suppress(RedisError):
            self._withdraw(redis)
        if not self.stopping.is_set():
            self.say(f"{self.device.name} is back in service")

    def _withdraw(self, redis: Redis) -> None:
        for name in {self.id, *self.ids}:
            withdraw(redis, name)

    def _resting_card(self, found: quarantine.Quarantine) -> WorkerCard:
        return WorkerCard(
            id=self.id,
            host=socket.gethostname(),
            device=self.device.name,
            device_name=self.device.device_name,
            device_kind=self.device.device_kind,
            capabilities=self.device.capabilities,
            queues=(),
            pid=os.getpid(),
            state=WorkerState.QUARANTINED,
            reason=found.reason,
            started_at=found.since,
            last_progress=found.since,
        )

    def _queues(self) -> tuple[str, ...]:
        return queue_names(socket.gethostname(), self.device.name, self.device.capabilities)

    def _start_celery(self) -> subprocess.Popen[bytes]:
        queues = list_names(self._queues())
        # Candidates run as users of their own; Celery's advice not to be root is for those who have none.
        command = [sys.executable, "-W", "ignore:You're running the worker", "-m", "celery", "--quiet"]
        command += ["-A", "workers.celery", "worker", "-P", "prefork", "-c", str(self.lanes)]
        command += ["-Q", ",".join(queues), "-n", f"{self.id}@{socket.gethostname()}", "--loglevel", "WARNING"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        environment = os.environ | self.device.environment
        url, file = broker_url(self.settings), self.settings.broker_password_file
        if file is not None:  # then no environment shows the password
            environment["DRKQ_BROKER_PASSWORD_FILE"] = str(file.absolute())
        environment |= {
            "DRKQ_BROKER_URL": without_password(url) if file is not None else url,
            "DRKQ_DEVICE": self.device.name,
            "DRKQ_WORKER_ID": self.id,
            "DRKQ_LANES": str(self.lanes),
        }
        for name in ("DRKQ_STORE_URL", "DRKQ_STORE_PASSWORD_FILE"):
            environment.pop(name, None)  # workers publish; they hold no credentials of the store
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in a terminal is for us; we pass it on as TERM
            preexec_fn=tether(signal.SIGKILL),  # noqa: PLW1509 - one prctl, no locks
        )
