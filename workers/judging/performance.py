"""Performance: what a candidate takes against the reference, and what of that is its own, in a fresh process."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from drkernel_q.artefact import ProfileRow
from drkernel_q.evaluation import Protocol, Stage
from drkernel_q.problem import Problem
from workers.comparison.reference import Reference
from workers.judging import baseline, profiling, timing, trial
from workers.judging.attribution import own_names
from workers.judging.baseline import Field, Remembered
from workers.judging.facts import Facts
from workers.judging.session import Session
from workers.judging.side import CandidateSide, Version
from workers.judging.trial import TrialResult

#: How far the reference may be from what it is known to take without a candidate before that is measured again.
USUAL = {"cuda": 0.02, "cpu": 0.0}


class Performance:
    """Timing and profile of a candidate that was found correct."""

    def __init__(
        self,
        session: Session,
        reference: Reference,
        problem: Problem,
        protocol: Protocol,
        facts: Facts,
        checked: TrialResult,
        stage: Callable[[str], AbstractContextManager[None]],
        device: Callable[..., AbstractContextManager[None]],
    ) -> None:
        """Build the candidate in `session`, a second, fresh process, which knows nothing of the one that was checked.

        What comes of it goes into `facts`. From `measure` on `stage` surrounds each part, and `device`, where its time
        is looked at with `alone=True`.
        """
        self.problem = problem
        self.protocol = protocol
        self.facts = facts
        self.checked = checked
        self.stage = stage
        self.device = device
        facts.raw["seeds"]["weights"].append(trial.build(session, reference))
        self.candidate = CandidateSide(session, reference)
        self.candidate.unusual = facts.hack_check.unusual
        self.field: Field | None = None

    def line_up(self) -> None:
        """Get both sides ready to be timed."""
        if Stage.TIMING in self.protocol.stages:
            self.field = baseline.line_up(self.candidate, self._versions(), self._known())

    def measure(self) -> None:
        """Time and profile the candidate, and hold what it did against what it did when it was checked.

        Raises:
            CandidateFailed: it failed, now that it is measured.
        """
        if self.field is not None:
            with self.device(alone=True), self.stage("timing"):
                self._time(self.field)
        if Stage.PROFILE in self.protocol.stages:
            self._profile()
        self._compare_processes()

    def compare_alone(self) -> None:
        """Say what the reference takes without the candidate: what slows it down would make a speedup.

        It is timed again, when the candidate is gone, unless it took as long as it is known to take.
        """
        measured = self.facts.timing
        if measured is None:
            return
        first, known = measured.baselines[0], self._known()
        version = first.baseline, first.precision
        alone_ms = known.find_alone(version)
        if alone_ms is None or abs(measured.reference_ms / alone_ms - 1) > USUAL[self.candidate.reference.device]:
            self.candidate.session.close()
            with self.device(alone=True), self.stage("alone"):
                alone_ms = timing.time_alone(self.candidate.reference, version)
            known.keep_alone(version, alone_ms)
        self.facts.timing = measured.model_copy(update={"reference_alone_ms": alone_ms})

    def close(self) -> None:
        """Give back the memory that was shared, and keep the seeds."""
        self.candidate.close()
        self.facts.raw["seeds"] |= self.candidate.seeds

    def _versions(self) -> list[Version]:
        """Name what the candidate is compared with: baselines of its own class first where that is a lower one."""
        asked, found = self.protocol.precision, self.checked.precision
        classes = [found, asked] if found.is_below(asked) else [asked]
        return [(baseline, precision) for precision in classes for baseline in self.protocol.baselines]

    def _known(self) -> Remembered:
        """Return what has been measured before of this problem, under these conditions."""
        return Remembered.of(Path.home() / "baselines", self.problem, self.facts.environment, self.protocol.mode)

    def _time(self, field: Field) -> None:
        race = baseline.race(field, self.protocol.timing_budget_s, self._known())
        self.facts.timing = race.timing
        self.facts.durations_s |= race.durations_s
        least = trial.output_bytes(self.candidate.reference, self.candidate.expected_like)
        self.facts.numbers |= {"late_ms": race.late_ms, "bytes_least": least}
        self.facts.raw |= {"blocks": race.blocks, "late_ms": {"reference": race.reference_late_ms}}
        if race.clock is None:
            self.facts.numbers["no_clock"] = "inputs are too large for bursts of calls"
        else:
            self.facts.numbers |= {"clock_ms": race.clock.bound_ms, "clock_noise_ms": race.clock.noise_ms}
            self.facts.raw["bursts"] = race.clock.bursts

    def _profile(self) -> None:
        facts = self.facts
        claimed_ms = facts.timing.candidate_ms if facts.timing else None
        other = facts.hack_check.other_mode(self.protocol.mode)
        around = profiling.Around(self._recording, self._profiling)
        examination = profiling.examine(self.candidate, self.protocol, claimed_ms, around, both_modes=other is not None)
        facts.profile = examination.profile
        facts.numbers["profiled_launches"] = examination.launches
        facts.raw["profile"] = [ProfileRow(**row._asdict()) for row in examination.rows]
        facts.hack_check.add_kernels(self.protocol.mode, own_names(facts.profile))
        if other is not None:
            facts.hack_check.add_kernels(other, examination.others)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        with self.device(), self.stage("recording"):
            yield

    @contextmanager
    def _profiling(self) -> Iterator[None]:
        with self.device(alone=True), self.stage("profile"):
            yield

    def _compare_processes(self) -> None:
        """Hold what the timed process did against what the checked one did."""
        facts, candidate, calls = self.facts, self.candidate, self.candidate.calls
        for answer in (*calls, *candidate.surprises):
            facts.findings += trial.findings_of(answer, candidate.reference)
        names = frozenset[str]().union(*(answer.own_names for answer in calls))
        facts.numbers |= {
            "wrong_outputs": len(candidate.recheck.faults),
            "first_wrong": next(iter(candidate.recheck.faults), None),
            "timed_calls": len(calls),
            "idle_calls": sum(not answer.own_launches for answer in calls),
            "compiled_calls": sum(answer.compiled > 0 for answer in calls[candidate.warm :]),
            "other_names": names != self.checked.own_names,
        }
        facts.raw["kernel_names"] = {"checked": sorted(self.checked.own_names), "timed": sorted(names)}
        facts.raw["late_ms"] = facts.raw.get("late_ms", {}) | {"candidate": [answer.late_ms for answer in calls]}
