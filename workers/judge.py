"""The judge: plans an evaluation, holds every secret of it, and decides.

One judge process serves one evaluation. It runs trusted code only: the reference on the same device, and comparison,
attribution and statistics over what candidate processes report. Seeds are drawn when they are needed and leave this
process as inputs, never as numbers (but for the seed of the weights, which are no secret).
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from drkernel_q.environment import Environment
from drkernel_q.errors import BadProblem, InfrastructureFailure, TimedOut
from drkernel_q.evaluation import (
    Correctness,
    Evaluation,
    EvaluationRequest,
    Failure,
    Integrity,
    Outcome,
    Profile,
    Protocol,
    Stage,
    Timing,
)
from workers import integrity, profiling, side, timing, trial
from workers.integrity import Finding, Weight
from workers.reference import Reference
from workers.remote import CandidateFailed, RemoteCandidate
from workers.session import Answer, Session
from workers.trial import TrialResult
from workers.wire import Channel
from workers.zygote import Zygote

#: Largest source that is judged, bytes. Real kernels have a few thousand.
MAX_SOURCE_BYTES = 2**20
#: Work after the last event of a timed call: what may be noise, milliseconds, and as a share of the call.
MOST_LATE_MS, MOST_LATE = 0.04, 0.1
#: How much slower the reference may be beside a candidate than alone, as a factor and milliseconds of noise.
MOST_SLOWED = {"cuda": 1.1, "cpu": 3.0}
SLOWED_NOISE_MS = {"cuda": 0.005, "cpu": 5.0}
#: Profiled forward passes.
PROFILED_CALLS = {"cuda": 10, "cpu": 2}


class Facts:
    """What is known so far; becomes the `Evaluation`."""

    def __init__(self, environment: Environment) -> None:
        """Start with nothing but the environment."""
        self.environment = environment
        self.outcome = Outcome.CORRECT
        self.findings: list[Finding] = []
        self.correctness: Correctness | None = None
        self.profile: Profile | None = None
        self.timing: Timing | None = None
        self.durations_s: dict[str, float] = {}
        self.error: str | None = None
        self.output = ""

    def evaluation(self, protocol: Protocol) -> Evaluation:
        """Decide on integrity and put everything together."""
        verdict, evidence = integrity.verdict(self.findings)
        examined = Stage.INTEGRITY in protocol.stages and self.outcome is Outcome.CORRECT
        if verdict is Integrity.CLEAN and not examined:
            verdict = Integrity.UNKNOWN
        return Evaluation(
            outcome=self.outcome,
            integrity=verdict,
            evidence=evidence,
            correctness=self.correctness,
            timing=self.timing,
            profile=self.profile,
            environment=self.environment,
            durations_s={name: round(seconds, 4) for name, seconds in self.durations_s.items()},
            error=self.error,
            stdout=self.output,
        )


class Judge:
    """Judges one request on one device."""

    def __init__(self, request: EvaluationRequest, environment: Environment, zygote: Zygote, channel: Channel) -> None:
        """Take the request; `channel` hears of each stage as it begins."""
        self.request = request
        self.protocol = request.protocol
        self.device = environment.device.partition(":")[0]
        self.facts = Facts(environment)
        self.zygote = zygote
        self.channel = channel
        self.memory_bytes = 0
        self.ends_at = time.monotonic() + request.deadline_s
        self.profiled: list[Answer] = []

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
        self.facts.durations_s["total"] = time.perf_counter() - start
        return self.facts.evaluation(self.protocol)

    def _judge(self) -> None:
        with self._stage("reference"):
            if self.protocol.precision == "tf32":
                torch.backends.cuda.matmul.allow_tf32 = True
            problem = self.request.problem
            problem = problem.small() if self.device == "cpu" else problem
            reference = Reference(problem, self.device, train=self.protocol.mode == "train")
            trial.check_inputs(reference)
        size = len(self.request.kernel.source.encode("utf-8", "replace"))
        if size > MAX_SOURCE_BYTES:
            text = f"the source has {size} bytes; at most {MAX_SOURCE_BYTES} are judged"
            raise CandidateFailed(Outcome.COMPILE_ERROR, text)
        result = self._check(reference)
        measured = {Stage.TIMING, Stage.PROFILE} & set(self.protocol.stages)
        if measured and result.outcome is Outcome.CORRECT:
            self._measure(reference, result)

    def _check(self, reference: Reference) -> TrialResult:
        """Correctness and hack check, in the first candidate process."""
        facts = self.facts
        with self._candidate("load") as session:
            with self._stage("correctness"):
                result = trial.run_trials(session, reference, self.protocol)
            facts.correctness = result.correctness
            facts.outcome = result.outcome
            facts.error = result.detail
            facts.findings += result.findings
            if result.outcome is Outcome.CORRECT and Stage.INTEGRITY in self.protocol.stages:
                with self._stage("integrity"):
                    source = self.request.kernel.source
                    facts.findings += trial.check_modes(session, reference, self.protocol, result, source)
                    facts.findings += trial.check_contents(session, reference)
        return result

    def _measure(self, reference: Reference, result: TrialResult) -> None:
        """Timing and profile, in a second, fresh candidate process that knows nothing of the first."""
        with self._candidate("load_again") as session:
            trial.build(session, reference)
            candidate = side.CandidateSide(session, reference)
            try:
                if Stage.TIMING in self.protocol.stages:
                    with self._stage("timing"):
                        self._time(candidate)
                if Stage.PROFILE in self.protocol.stages:
                    with self._stage("profile"):
                        self._profile(candidate)
            finally:
                candidate.close()
            self._compare_processes(candidate, result)
        if self.facts.timing is not None:
            with self._stage("alone"):
                self._compare_alone(reference, self.facts.timing)

    def _time(self, candidate: side.CandidateSide) -> None:
        race = timing.time_both(candidate, self.protocol.baselines, self.protocol.timing_budget_s)
        self.facts.timing = race.timing
        if race.late_ms > max(MOST_LATE_MS, MOST_LATE * race.timing.candidate_ms):
            detail = f"the device was still working {race.late_ms:.3g} ms after the last event of a call"
            self.facts.findings.append(Finding("D1", Weight.HARD, detail))
        if race.hidden_ms:
            claimed = f"{race.timing.candidate_ms:.3g} ms were claimed for a call"
            detail = f"{claimed}, the judge's own clock saw {race.timing.judge_ms:.3g} ms"
            self.facts.findings.append(Finding("D10", Weight.HARD, detail))

    def _compare_alone(self, reference: Reference, measured: Timing) -> None:
        """Time the reference again, now that the candidate is gone: what slows it down makes a speedup (D15)."""
        alone_ms = timing.time_alone(reference, self.protocol.baselines[0])
        self.facts.timing = measured.model_copy(update={"reference_alone_ms": alone_ms})
        if measured.reference_ms > MOST_SLOWED[self.device] * alone_ms + SLOWED_NOISE_MS[self.device]:
            detail = f"the reference took {measured.reference_ms:.3g} ms beside the candidate, {alone_ms:.3g} ms alone"
            self.facts.findings.append(Finding("D15", Weight.HARD, detail))

    def _profile(self, candidate: side.CandidateSide) -> None:
        """Profile calls that are timed as all others are, and check what they give."""
        session, findings = candidate.session, self.facts.findings
        candidate.timed()  # as the first of a session, the next call would pay for its start
        session.profile(on=True)
        before = len(candidate.calls)
        calls = PROFILED_CALLS[self.device]
        for _ in range(calls):
            candidate.timed()
        self.profiled = candidate.calls[before:]
        rows = session.profile(on=False)
        # All names since its first call: a CUDA graph is launched by Triton once, and replayed by nobody we count.
        own = frozenset[str]().union(*(answer.own_names for answer in candidate.calls))
        profile = self.facts.profile = profiling.attribute(rows, set(own), calls)
        if profile.profile_ratio is None:
            findings.append(Finding("E13", Weight.FAILED, "the profiler recorded no device activity"))
        elif own and not profile.launches and self.protocol.backend == "triton":
            detail = "Triton launches were counted, but no kernel of the candidate took device time"
            findings.append(Finding("A7", Weight.HARD, detail))

    def _compare_processes(self, candidate: side.CandidateSide, result: TrialResult) -> None:
        """Hold what the timed process did against what the checked one did."""
        findings = self.facts.findings
        for answer in candidate.calls:
            findings += trial.findings_of(answer, candidate.reference)
        faults = candidate.recheck.faults
        if faults:
            detail = f"outputs of {len(faults)} of {candidate.recheck.count} timed calls are wrong: {faults[0]}"
            findings.append(Finding("B5", Weight.HARD, detail))
        calls = candidate.calls
        idle = sum(not answer.own_launches for answer in calls)
        profile = self.facts.profile
        replayed = (
            not any(answer.own_launches for answer in self.profiled) and profile is not None and profile.launches > 0
        )
        if self.protocol.backend == "triton" and result.own_launches and idle and not replayed:
            detail = f"in {idle} of {len(calls)} timed calls no Triton kernel of the candidate ran"
            findings.append(Finding("A8", Weight.HARD, detail))
        names = frozenset[str]().union(*(answer.own_names for answer in calls))
        if names != result.own_names:
            detail = "other Triton kernels run in the process that was timed than in the one that was checked"
            findings.append(Finding("A16", Weight.NOTE, detail))

    @contextmanager
    def _candidate(self, stage: str) -> Iterator[Session]:
        """Fork a candidate process, give it the source, and end it together with all it made."""
        with RemoteCandidate(self.zygote, self.memory_bytes) as remote:
            self.facts.environment = self.facts.environment.model_copy(update={"isolation": tuple(remote.isolation)})
            session = Session(remote, self.device, self.protocol.kernel_deadline_s, self.ends_at)
            try:
                with self._stage(stage):
                    session.load(self.request.kernel.source)
                yield session
                children = remote.children()
                if children:
                    detail = f"{children} child processes were left running"
                    self.facts.findings.append(Finding("D8", Weight.SOFT, detail))
            finally:
                remote.close()
                session.close()
                self.facts.output = self.facts.output or remote.output.decode("utf-8", "replace")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.channel.send({"stage": name})
        start = time.perf_counter()
        try:
            yield
        finally:
            self.facts.durations_s[name] = time.perf_counter() - start


def main(conn: int, zygote_fd: int, device: str) -> None:
    """Serve one evaluation in this fresh fork."""
    channel = Channel(socket.socket(fileno=conn))
    zygote = Zygote(Channel(socket.socket(fileno=zygote_fd)))
    job, _ = channel.receive(60.0)
    reply: dict[str, Any]
    try:
        request = EvaluationRequest.model_validate(job["request"])
        judge = Judge(request, Environment.model_validate(job["environment"]), zygote, channel)
        judge.memory_bytes = job["memory_bytes"]
        with torch.random.fork_rng(devices=[]):
            reply = {"evaluation": judge.evaluate().model_dump(mode="json", round_trip=True)}
    except BadProblem as error:
        reply = {"failure": Failure(kind="problem", message=str(error)).model_dump()}
    except TimedOut as error:
        reply = {"failure": Failure(kind="deadline", message=str(error)).model_dump()}
    except InfrastructureFailure as error:
        reply = {"failure": Failure(kind="infrastructure", message=str(error)).model_dump()}
    except torch.AcceleratorError as error:
        reply = {
            "failure": Failure(kind="infrastructure", message=f"The judge's own device failed: {error}").model_dump()
        }
    channel.send(reply)
