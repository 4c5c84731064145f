"""Health: whether a device can be trusted with the next task, and what is done about one that cannot.

After an evaluation that ended abnormally, and once in a while, the device is looked at before anything else: the
driver's word, the memory in use, and a canary in a fresh process. If that fails, everything below the worker is
replaced and the look repeated; a device that fails again and again is put into quarantine. No card is ever reset or
reconfigured.
"""

import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drkernel_q import quarantine
from drkernel_q.errors import UnreliableClock
from drkernel_q.evaluation import Failure
from drkernel_q.quarantine import Quarantine
from workers.device import Device
from workers.family import Family
from workers.gate import Gate
from workers.isolation import fault
from workers.isolation.wire import WireClosed, WireTimeout
from workers.monitor import FATAL_XIDS, PROGRAM_XIDS, Monitor

#: Longest time for the self-test of the stop-watch with the first canary, and for a canary alone, seconds.
SELFTEST_S, CANARY_S = 60.0, 30.0
#: A look at the device after as many evaluations, whatever became of them.
EVERY = 100
#: Looks that fail in a row, each after everything was replaced, before the device is put into quarantine.
MOST_LOOKS = 3
#: A canary that takes this many times longer than the first one is not well.
SLOW = 2.0
#: Time for device memory to be given back, seconds, and what may be in use beyond what was at the start: by a judge and
#: its spare candidates, and by nobody of ours.
SETTLE_S = 5.0
OURS_BYTES, NOBODYS_BYTES = 4 * 2**30, 2**30
_POLL_S = 0.05


class Health:
    """Watches over one device."""

    def __init__(
        self,
        device: Device,
        family: Family,
        state_dir: Path,
        monitor: Monitor,
        gate: Gate | None = None,
        worker: str = "",
    ) -> None:
        """Know nothing yet; the first look is also the self-test of the stop-watch.

        With a `gate`, other lanes of the `worker` use the device too: memory in use says nothing then, errors of
        programs are told of by whoever made them, and the first look of one of them is for all.
        """
        self.device = device
        self.gate = gate
        self.worker = worker
        self.family = family
        self.state_dir = state_dir
        self.monitor = monitor
        self.quarantine: Quarantine | None = None
        """Why nothing runs on the device any more."""
        self._tested = False
        self._canary_ms: float | None = None
        self._since_look = 0
        self._start_bytes: int | None = None
        self._uncorrected = monitor.uncorrected()
        self._xids: tuple[int, ...] = ()

    def wait_ready(self) -> None:
        """Wait for the family, and look at the device if nobody has yet.

        Raises:
            WireClosed, WireTimeout: the zygote did not start.
            UnreliableClock: the self-test of the stop-watch failed.
        """
        if self.quarantine is None:
            self._start_family()
            if not self._tested:
                self.examine("a worker starts", ())

    def _start_family(self) -> None:
        if not self.family.versions:
            self.family.wait_ready()
            # Nothing of ours is on the device; what others hold is none of our business.
            alone = self.gate is None and not self.monitor.processes()
            self._start_bytes = self.monitor.used_bytes() if alone else None

    def suspicion(self, word: str | None, failure: Failure | None) -> str | None:
        """Say why the device should be looked at after an evaluation; None if it need not be.

        `word` is the fault that came of it, if one did.
        """
        self._since_look += 1
        self._xids = self.monitor.xids()
        if self.gate is not None and not fault.is_abnormal(word):
            self._xids = tuple(number for number in self._xids if number not in PROGRAM_XIDS)
        if self._xids:
            return f"the driver reported {', '.join(map(fault.xid, self._xids))}"
        if fault.is_abnormal(word):
            return f"a process ended with {word}"
        if failure is not None and failure.kind != "problem":
            return f"an evaluation failed ({failure.kind}): {failure.message}"
        return f"{EVERY} evaluations have passed" if self._since_look >= EVERY else None

    def reported(self, word: str | None) -> str | None:
        """Return the fault, or what the driver alone has reported since the last evaluation."""
        return word or (fault.xid(self._xids[0]) if self._xids else None)

    def is_to_blame(self, word: str | None) -> bool:
        """Whether a fault is one of the device's own that the driver confirms, as far as it tells anything.

        Processes that are kept may have met it too, and are ended.
        """
        if not fault.is_of_the_device(word):
            return False
        self.family.drop()
        before, self._uncorrected = self._uncorrected, self.monitor.uncorrected()
        return not self.monitor.hears_events or bool(self._xids) or before != self._uncorrected

    def examine(self, suspicion: str, evidence: tuple[str, ...]) -> list[str]:
        """Look at the device until it is well; return what was wrong before it was.

        After `MOST_LOOKS` failures, or if the driver itself wants no more, `quarantine` is set.

        Raises:
            WireClosed, WireTimeout: the zygote does not start any more, which says nothing about the device.
            UnreliableClock: the self-test of the stop-watch failed.
        """
        complaints: list[str] = []
        self._since_look = 0
        if set(self._xids) - PROGRAM_XIDS:
            self.family.drop()  # what concerns the whole device may have cost the judge and its spares their contexts
        if not self._is_settled():
            self.family.close()
        while len(complaints) < MOST_LOOKS:
            complaint = self._final_word() or self._look()
            final = self._final_word()
            if complaint is None and final is None:
                return complaints
            complaints.append(final or str(complaint))
            self.family.close()
            if final is not None:
                break
        self._put_away(complaints, (f"Before the look: {suspicion}.", *evidence))
        return complaints

    def _final_word(self) -> str | None:
        """Say why the device can be used no more before somebody has done something about it."""
        self._xids += self.monitor.xids()  # some come late, and are nothing to the next evaluation
        fatal = sorted(FATAL_XIDS & set(self._xids))
        return f"the driver reported {fault.xid(fatal[0])}" if fatal else self.monitor.verdict()

    def _look(self) -> str | None:
        """Let a fresh process try the device; return what is wrong."""
        self._start_family()
        if self.gate is None:
            return self._try_device()
        with self.gate.alone():
            if not self._tested and self.gate.is_well(self.worker):
                self._tested = True
                return None
            complaint = self._try_device()
            if complaint is None:
                self.gate.call_well(self.worker)
            return complaint

    def _try_device(self) -> str | None:
        role, limit_s = ("canary", CANARY_S) if self._tested else ("selftest", SELFTEST_S)
        try:
            found = self.family.ask(role, limit_s)
        except (WireClosed, WireTimeout) as error:
            return f"{error} ({type(error).__name__})"
        complaint = self._complaint(found)
        if complaint is None and found.get("faults"):
            self.family.close()
            raise UnreliableClock(f"On {self.device.name} {'; '.join(found['faults'])}. Nothing is timed there.")
        self._tested = self._tested or complaint is None
        return complaint

    def _complaint(self, found: Mapping[str, Any]) -> str | None:
        if found.get("complaint") is not None:
            return f"the canary found that {found['complaint']}"
        milliseconds = found.get("milliseconds")
        if milliseconds is None:
            return None
        self._canary_ms = self._canary_ms or milliseconds
        if milliseconds > SLOW * self._canary_ms:
            return f"the canary took {milliseconds:.3g} ms, and {self._canary_ms:.3g} ms when the worker started"
        return None

    def _is_settled(self) -> bool:
        """Wait until what ended has given its memory back; the judge is ended if it may be the one that holds it."""
        if self._settles(OURS_BYTES):
            return True
        self.family.drop()
        return self._settles(NOBODYS_BYTES)

    def _settles(self, allowed_bytes: int) -> bool:
        deadline = time.monotonic() + SETTLE_S
        while self._start_bytes is not None:
            used = self.monitor.used_bytes()
            if used is None or used <= self._start_bytes + allowed_bytes:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _put_away(self, complaints: list[str], evidence: tuple[str, ...]) -> None:
        looks = [f"Look {number}: {complaint}." for number, complaint in enumerate(complaints, 1)]
        used, start = self.monitor.used_bytes(), self._start_bytes
        driver = [] if used is None else [f"Device memory in use: {used} bytes; when a zygote last started: {start}."]
        driver += [f"Uncorrected errors of memory: {self.monitor.uncorrected()}."] if self.monitor.hears_events else []
        self.quarantine = Quarantine(
            identity=self.device.identity,
            device=self.device.name,
            device_name=self.device.device_name,
            host=socket.gethostname(),
            reason=f"{complaints[-1][:1].upper()}{complaints[-1][1:]}.",
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            evidence=(*evidence, *looks, *driver),
        )
        try:
            quarantine.put(self.state_dir, self.quarantine)
        except OSError as error:  # the device is out of service all the same, until the worker starts anew
            written = (*self.quarantine.evidence, f"This could not be written down: {error}.")
            self.quarantine = self.quarantine.model_copy(update={"evidence": written})
