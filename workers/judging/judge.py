"""The judge: plans an evaluation, holds every secret of it, and decides.

A judge process serves one evaluation at a time. It runs trusted code only: the reference on the same device, and
comparison, attribution and statistics over what candidate processes report. Seeds are drawn when they are needed and
leave this process as inputs (but for the seed of the weights, no secret), and as numbers when no candidate runs any
more.
"""

import contextlib
import functools
import itertools
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from drkernel_q.correctness import Precision
from drkernel_q.environment import Environment
from drkernel_q.errors import BadProblem, InfrastructureFailure, TimedOut
from drkernel_q.evaluation import (
    Evaluation,
    EvaluationRequest,
    Failure,
    Outcome,
    Stage,
)
from drkernel_q.observation import Weight
from workers.comparison.reference import Reference
from workers.exchange.integrity import Finding
from workers.gate import Gate, OpenGate
from workers.isolation import fault
from workers.isolation.wire import Channel
from workers.isolation.zygote import Zygote
from workers.judging import hackcheck, trial, weights
from workers.judging.claim import CandidateFailed
from workers.judging.facts import Facts
from workers.judging.performance import Performance
from workers.judging.serving import serve
from workers.judging.session import Session, pack_inputs
from workers.judging.spare import Spares
from workers.judging.trial import TrialResult

#: Largest source that is judged, bytes. Real kernels have a few thousand.
MAX_SOURCE_BYTES = 2**20
#: Inputs up to this size are called with once before a candidate is timed, bytes: two processes hold them then.
REHEARSED_BYTES = 2**30
#: While other lanes are waited for, it is said every so many seconds.
TELL_S = 1.0
#: A judge ends after as many evaluations, so that nothing can pile up in it.
MOST_EVALUATIONS = 64


class Judge:
    """Judges one request on one device."""

    def __init__(
        self,
        request: EvaluationRequest,
        environment: Environment,
        spares: Spares,
        channel: Channel,
        door: tuple[str, str] | None = None,
    ) -> None:
        """Take the request; `channel` hears of each stage as it begins.

        At the `door`, folder and identity of a gate, other lanes of the device are met, if it has any.
        """
        self.request = request
        self.protocol = request.protocol
        self.device = environment.device_type
        self.facts = Facts(environment)
        self.spares = spares
        self.channel = channel
        self.ends_at = time.monotonic() + request.deadline_s
        self.gate = OpenGate() if door is None else Gate(Path(door[0]), door[1], self._tell_of_waiting)
        self._sessions: list[Session] = []
        self._told_s = 0.0

    def evaluate(self) -> Evaluation:
        """Judge the request.

        Raises:
            BadProblem: the reference cannot be used.
            InfrastructureFailure: no candidate process could be run.
        """
        start = time.perf_counter()
        try:
            self._judge()
        except CandidateFailed as failed:
            self.facts.outcome = failed.outcome
            self.facts.error = failed.error
            self.facts.fault = self.facts.fault or failed.fault
            self.facts.findings += trial.state_findings(failed.state)
        finally:
            self._sessions.clear()  # they lead back here, and memory of the device hangs on them
        self.facts.durations_s |= {"waiting": self.gate.waited_s, "total": time.perf_counter() - start}
        return self.facts.evaluation(self.protocol)

    def _judge(self) -> None:
        measured = bool({Stage.TIMING, Stage.PROFILE} & set(self.protocol.stages))
        with contextlib.ExitStack() as timed_ends:
            timed_ends.callback(self.spares.fill)
            with contextlib.ExitStack() as checked_ends:
                checked = self._open(checked_ends)
                timed = self._open(timed_ends) if measured else None
                with self._device():
                    reference = self._reference()
                    self._rehearse(checked, reference)
                    if timed is not None:
                        self._rehearse(timed, reference)
                with self._stage("compile"):
                    checked.remote.reach()
                    if timed is not None:
                        timed = self._reached(timed)
                with self._device():
                    result = self._check(checked, reference)
                    if not measured or result.outcome is not Outcome.CORRECT:
                        return
                    timed = self._settled(timed, timed_ends)
                    with self._candidate(timed), self._stage("line_up"):
                        performance = self._line_up(timed, reference, result, timed_ends)
            self.spares.fill()
            performance.measure()
            performance.compare_alone()

    def _reference(self) -> Reference:
        with self._stage("reference"):
            problem = self.request.problem
            problem = problem.small() if self.device == "cpu" else problem
            reference = Reference(problem, self.device, train=self.protocol.mode == "train")
            trial.check_inputs(reference)
            self.protocol = self.protocol.model_copy(update={"precision": reference.precision(self.protocol.precision)})
        size = len(self.request.kernel.source.encode("utf-8", "replace"))
        if size > MAX_SOURCE_BYTES:
            text = f"the source has {size} bytes; at most {MAX_SOURCE_BYTES} are judged"
            raise CandidateFailed(Outcome.COMPILE_ERROR, text)
        return reference

    @contextmanager
    def _device(self, *, alone: bool = False) -> Iterator[None]:
        """Use the device for the length of a block, beside other lanes or alone; the time to get it is nobody's."""
        with self.gate.alone() if alone else self.gate.shared():
            yield

    @contextmanager
    def _awake(self, session: Session, *, alone: bool = False) -> Iterator[None]:
        """Use the device for the length of a block with a candidate process that stands still otherwise."""
        with self._device(alone=alone):
            session.remote.resume()
            with self._candidate(session):
                yield

    def _give_way(self) -> None:
        """Let lanes that want the device alone have it, between two requests; processes of this one stand still."""
        if not self.gate.is_wanted():
            return
        awake = [session.remote for session in self._sessions if not session.remote.is_paused]
        for remote in awake:
            remote.pause()
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.gate.give_way()
        for remote in awake:
            remote.resume()

    def _tell_of_waiting(self) -> None:
        if self.gate.waited_s - self._told_s > TELL_S:
            self._told_s = self.gate.waited_s
            self.channel.send({"stage": "waiting", "waited_s": self._told_s})

    def _left_s(self) -> float:
        """Return what is left of the evaluation's time, seconds."""
        return self.ends_at + self.gate.waited_s - time.monotonic()

    def _open(self, ends: contextlib.ExitStack) -> Session:
        """Take a fresh candidate process, which ends with `ends`."""
        with self._stage("start"):
            deadline_s = self.protocol.kernel_deadline_s
            session = Session(self.spares.take, self.device, deadline_s, self._left_s, self._give_way)
            self._sessions.append(session)
            ends.callback(self._end, session)
            isolation = session.remote.wait_ready()
        self.facts.environment = self.facts.environment.model_copy(update={"isolation": isolation})
        return session

    def _rehearse(self, session: Session, reference: Reference) -> None:
        """Let a process load the source, and compile its kernels on a device where that takes long, by itself."""
        with session.ahead():
            self._load(session)
            if self.device == "cuda":
                trial.build(session, reference)
                inputs = reference.inputs(secrets.randbits(63))
                if pack_inputs(inputs)[3] <= REHEARSED_BYTES:
                    session.rehearse(inputs, train=reference.train)

    def _load(self, session: Session) -> None:
        """Have the source imported; torch multiplies there as it does for the reference that is timed."""
        session.load(self.request.kernel.source, tf32=self.protocol.precision is Precision.TF32)

    def _check(self, session: Session, reference: Reference) -> TrialResult:
        """Correctness and hack check, in the first candidate process."""
        facts = self.facts
        with self._candidate(session):
            with self._stage("load"):
                session.remote.go()
            if not self.gate.is_shared:
                self.spares.fill()
            with self._stage("correctness"):
                result = trial.run_trials(session, reference, self.protocol)
                if result.outcome is Outcome.CORRECT:
                    result = weights.try_whole_numbers(session, reference, result)
            facts.correctness = result.correctness
            facts.outcome = result.outcome
            facts.error = result.detail
            facts.findings += result.findings
            facts.numbers["own_launches"] = result.own_launches
            facts.raw["seeds"] = result.seeds
            if result.outcome is Outcome.CORRECT and Stage.INTEGRITY in self.protocol.stages:
                with self._stage("integrity"):
                    source = self.request.kernel.source
                    hackcheck.check_modes(session, reference, self.protocol, result, source, facts.hack_check)
                    # The other mode and suppressed launches have left their marks on what a model holds.
                    result.seeds["weights"].append(trial.build(session, reference))
                    hackcheck.check_contents(session, reference, facts.hack_check)
                    hackcheck.check_constants(session, reference, facts.hack_check)
                    weights.check_weights(session, reference, facts.hack_check)
        return result

    def _line_up(
        self, timed: Session, reference: Reference, result: TrialResult, ends: contextlib.ExitStack
    ) -> Performance:
        problem, device = self.request.problem, functools.partial(self._awake, timed)
        performance = Performance(timed, reference, problem, self.protocol, self.facts, result, self._stage, device)
        ends.callback(performance.close)
        performance.line_up()
        return performance

    @staticmethod
    def _reached(timed: Session) -> Session | None:
        """Wait for the process that will be timed; None if it has failed."""
        try:
            timed.remote.reach()
        except CandidateFailed:  # perhaps because two were on the device; if not, it will fail again
            timed.is_judged = False
            return None
        return timed

    def _settled(self, rehearsed: Session | None, ends: contextlib.ExitStack) -> Session:
        """Return the process that has rehearsed, or another one, which ends with `ends`, if it has failed."""
        with self._stage("load_again"):
            if rehearsed is not None:
                try:
                    rehearsed.remote.go()
                    return rehearsed
                except CandidateFailed:
                    rehearsed.is_judged = False
            session = self._open(ends)
            self._load(session)
        return session

    @contextmanager
    def _candidate(self, session: Session) -> Iterator[None]:
        """Let a candidate process do what it is asked for, and then nothing more."""
        try:
            yield
            children = session.remote.children()
            if children:
                detail = f"{children} child processes were left running"
                self.facts.findings.append(Finding("D8", Weight.SOFT, detail))
        finally:
            session.remote.pause()

    def _end(self, session: Session) -> None:
        """End a candidate process together with all it made; that takes the device's driver a while."""
        with self._stage("end"):
            session.close()
        if session.is_judged or fault.is_abnormal(session.fault):  # how it may have left the device is worth knowing
            self.facts.fault = self.facts.fault or session.fault
        self.facts.output = self.facts.output or session.remote.output.decode("utf-8", "replace")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Tell of a stage, and add to its seconds, in which others are not waited for."""
        self.channel.send({"stage": name})
        start = time.perf_counter() - self.gate.waited_s
        try:
            yield
        finally:
            seconds = time.perf_counter() - self.gate.waited_s - start
            self.facts.durations_s[name] = self.facts.durations_s.get(name, 0.0) + seconds


def main(conn: int, zygote_fd: int, device: str, memory_bytes: int) -> None:
    """Serve evaluations in this fresh fork."""
    channel = Channel(socket.socket(fileno=conn))
    spares = Spares(Zygote(Channel(socket.socket(fileno=zygote_fd))), memory_bytes)
    count = itertools.count(1)

    def answer(job: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        request = EvaluationRequest.model_validate(job["request"])
        environment = Environment.model_validate(job["environment"])
        judge = Judge(request, environment, spares, channel, job["gate"])
        try:
            evaluation = judge.evaluate().model_dump(mode="json", round_trip=True)
        except (BadProblem, TimedOut, InfrastructureFailure, torch.AcceleratorError, torch.OutOfMemoryError) as error:
            return _failure(error, device), False
        return {"evaluation": evaluation, "artefacts": judge.facts.artefacts()}, next(count) < MOST_EVALUATIONS

    serve(channel, device, answer)


def _failure(error: Exception, device: str) -> dict[str, Any]:
    """Say why there are no facts, and what fault of the device is behind it, the judge's own context being lost."""
    kind: Literal["problem", "deadline", "infrastructure"] = "infrastructure"
    if isinstance(error, BadProblem | TimedOut):
        kind = "problem" if isinstance(error, BadProblem) else "deadline"
    is_of_torch = isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError)
    message = f"The judge's own device failed: {error}" if is_of_torch else str(error)
    used = device == "cuda" and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    behind = error.__cause__ if isinstance(error.__cause__, Exception) else error
    found = fault.of_exception(behind, torch.cuda.current_stream().query if used else lambda: True)
    return {"failure": Failure(kind=kind, message=message).model_dump(), "fault": found}
