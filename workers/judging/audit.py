"""The audit of a problem: the judge's own reference, tolerance and stop-watch, and no kernel.

It has a process to itself, since a reference may crash, hang, or fill the memory; one that has done nothing of the kind
leaves its process to the next. What is returned are facts; `drkernel_q.audit` derives flags from them.
"""

import resource
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.environment import Environment
from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Baseline
from workers.comparison import correctness
from workers.comparison.distance import (
    distance,
    is_finite,
    is_real,
    is_whole,
    largest,
    moments,
    size_bytes,
    spread,
    typical,
)
from workers.comparison.generators import Generators
from workers.comparison.measure import Expected
from workers.comparison.reference import Reference
from workers.comparison.sensitivity import Prober
from workers.comparison.subject import input_subjects, weight_subjects, with_leaves
from workers.exchange import integrity
from workers.exchange.shared import leaves
from workers.exchange.stopwatch import Stopwatch
from workers.harness.profiler import Profiler
from workers.isolation.wire import Channel
from workers.judging import trial
from workers.judging.serving import serve

#: Seeds of two draws of inputs and of weights: nothing here is a secret, and an audit can be repeated.
SEEDS = (1, 2)
#: Timed calls, at most and at least, and seconds after which no further one is begun.
CALLS, LEAST_CALLS, TIMING_S = 10, 3, 0.5
WARM_UP_CALLS = 2
#: Seconds after which no further tensor is changed.
PROBE_S = 2.0
#: No time is shorter, milliseconds.
_SHORTEST_MS = 1e-5
#: Most characters of an exception that are kept.
_MOST_TEXT = 300


class Auditor:
    """Audits one problem on one device."""

    def __init__(self, request: AuditRequest, environment: Environment, tell: Callable[[dict[str, Any]], None]) -> None:
        """Take the request; `tell` hears of each part as it begins, and what was found until then."""
        self.request = request
        self.environment = environment
        self.tell = tell
        self.device = environment.device_type
        self.facts: dict[str, Any] = {}
        self.gaps: dict[str, str] = {}
        self.durations_s: dict[str, float] = {}
        self.failed = False
        """Whether anything was raised, so that this process is better not used again."""

    def audit(self) -> Audit:
        """Measure everything that can be measured; a problem that cannot be used says so."""
        unusable = None
        start = time.perf_counter()
        try:
            self._measure()
        except BadProblem as error:
            self.failed = True
            unusable = str(error)
        except torch.AcceleratorError as error:
            self.failed = True
            unusable = f"The device failed while the reference ran: {_first_line(error)}"
        self.durations_s["total"] = time.perf_counter() - start
        return self._found(unusable)

    def _found(self, unusable: str | None = None) -> Audit:
        return Audit(
            environment=self.environment,
            unusable=unusable,
            gaps=self.gaps,
            durations_s={name: round(seconds, 4) for name, seconds in self.durations_s.items()},
            **self.facts,
        )

    def _measure(self) -> None:
        with self._timed("build"):
            self._build()
        with self._timed("expect"):
            self._expect()
        parts = [self._repeat, self._exchange, self._switch_mode, self._time, self._count_flops]
        if self.device == "cuda":
            parts.append(self._count_kernels)
        if self.request.compile:
            parts.append(self._time_compiled)
        for part in (*parts, self._probe):
            name = part.__name__.strip("_")
            self.tell({"stage": name, "audit": _written(self._found())})
            try:
                with self._timed(name):
                    part()
            except torch.AcceleratorError:
                self.failed = True
                if part != self._probe:
                    raise
                self.gaps[name] = "the device failed when an input was changed"  # and nothing is left to be done on it
            except Exception as error:  # noqa: BLE001 - whatever trusted code raises beyond a plain call leaves a gap
                self.failed = True
                self.gaps[name] = _first_line(error)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.durations_s[name] = time.perf_counter() - start

    def _build(self) -> None:
        """Make the model under both seeds, on the device if that makes no difference, and draw inputs twice."""
        problem = self.request.problem
        problem = problem.small() if self.device == "cpu" else problem
        self.reference = Reference(problem, self.device, train=False, made_on=self.device)
        trial.check_inputs(self.reference)
        try:
            self.other_model = self.reference.build(SEEDS[1])
            movable = not _keeps_tensors(self.other_model)
        except BadProblem:
            movable = False
        if not movable:
            self.reference.made_on = "cpu"
            self.other_model = self.reference.build(SEEDS[1])
        self.model = self.reference.build(SEEDS[0])
        self.draws = [self.reference.inputs(seed) for seed in SEEDS]
        first, second = (leaves(draw) for draw in self.draws)
        if [(each.shape, each.dtype) for each in first] != [(each.shape, each.dtype) for each in second]:
            raise BadProblem(f"get_inputs() of {problem.name} draws other shapes under another seed.")

    def _expect(self) -> None:
        """Run the reference in its own precision and in fp64."""
        expected = self.expected = self.reference.expected(self.draws[0])
        # For many comparisons: no less precise class of products explains what they find, and looking takes long.
        self.strict = replace(expected, accepts=())
        pairs = list(zip(expected.working, expected.exact, strict=True))
        errors = [distance(exact, working) for working, exact in pairs if exact is not None and is_real(working)]
        if len(errors) < sum(is_real(working) for working, _ in pairs):
            self.gaps["fp64"] = "the problem cannot be run in fp64 here"
        else:
            self.facts["relative_l2"] = largest(errors)
        given = leaves(self.draws[0])
        own = [output for output in expected.working if not any(integrity.same_bits(output, each) for each in given)]
        self.facts |= {
            "finite": all(map(is_finite, expected.working)),
            "changes_inputs": self.reference.changes_inputs,
            "output_bytes": sum(map(size_bytes, own)),
        }
        self.facts["output_rms"], self.facts["output_std"] = moments(list(filter(is_real, expected.working)))

    def _run(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Run one eager call, on copies of the inputs if it writes to them."""
        return leaves(self.reference.run(self._unspoilt(inputs)))

    def _unspoilt(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if not self.reference.changes_inputs:
            return inputs
        return with_leaves(inputs, [leaf.clone() for leaf in leaves(inputs)])

    def _passes(self, outputs: Sequence[Tensor], expected: Expected | None = None) -> bool:
        """Whether outputs are within the judge's tolerance of those that are expected."""
        expected = expected or self.expected
        if [(each.shape, each.dtype) for each in outputs] != [(each.shape, each.dtype) for each in expected.working]:
            return False
        return correctness.passes(expected, outputs)

    def _repeat(self) -> None:
        """Make two calls in the same state of all random generators, and one in another if that makes a difference."""
        before = Generators.now()
        held = self._start_memory()
        first = self._run(self.draws[0])
        if held is not None:
            self.facts["peak_bytes"] = torch.cuda.max_memory_allocated() - held
        is_random = not before.same_as(Generators.now())
        before.restore()
        second = self._run(self.draws[0])
        same = len(first) == len(second) and all(map(integrity.same_bits, first, second))
        self.facts |= {"random": is_random, "deterministic": same}
        # Without fp64, whose errors hold the randomness too, a call must come within rounding of another.
        alone = replace(self.strict, exact=[None] * len(first))
        self.facts["repeatable"] = self._passes(self._run(self.draws[0]) if is_random else second, alone)

    def _start_memory(self) -> int | None:
        """Begin to watch the device memory; return how much of it is neither weights nor inputs of the next call."""
        if self.device != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        needed = [*leaves(self.draws[0]), *self.model.parameters(), *self.model.buffers()]
        return torch.cuda.memory_allocated() - sum(map(size_bytes, needed))

    def _exchange(self) -> None:
        """Offer what is no answer: outputs for other inputs, a constant, zeros; and look at how far weights reach."""
        working = self.expected.working
        others = self._run(self.draws[1])
        self.facts["input_spread"] = spread(working, others)
        self.facts["other_passes"] = self._passes(others)
        constants = [torch.full_like(output, typical(other)) for output, other in zip(working, others, strict=True)]
        self.facts["constant_passes"] = self._passes(constants)
        del others, constants
        self.facts["zeros_pass"] = self._passes([torch.zeros_like(output) for output in working])
        if any(True for _ in self.model.parameters()):
            with torch.no_grad():
                others = leaves(self.other_model(*self._unspoilt(self.draws[0])))
            self.facts["weight_spread"] = spread(working, others)

    def _switch_mode(self) -> None:
        """Make a call in `train()` mode, and undo what that does to buffers."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        if not self.facts.get("repeatable"):
            return
        self.model.train()
        try:
            self.facts["train_differs"] = not self._passes(self._run(self.draws[0]))
        finally:
            self.model.eval()
            for buffer, kept in buffers:
                buffer.copy_(kept)

    def _time(self) -> None:
        self.facts["reference_ms"] = self._median_ms(Baseline.EAGER)

    def _time_compiled(self) -> None:
        self.facts["compile_ms"] = self._median_ms(Baseline.COMPILE)

    def _median_ms(self, baseline: Baseline) -> float:
        stopwatch = Stopwatch(self.device)

        def timed(number: int) -> float:
            inputs = self._unspoilt(self.draws[number % 2])
            return stopwatch.time(partial(self.reference.run, inputs, baseline))[0]

        for number in range(WARM_UP_CALLS):
            timed(number)
        start = time.perf_counter()
        times: list[float] = []
        while len(times) < CALLS and (len(times) < LEAST_CALLS or time.perf_counter() - start < TIMING_S):
            times.append(timed(len(times)))
        return max(float(np.median(times)), _SHORTEST_MS)

    def _count_kernels(self) -> None:
        profiler = Profiler(self.device)
        profiler.start()
        with profiler.call():
            self._run(self.draws[0])
        trace = profiler.stop()
        if trace.fault is None:
            self.facts["kernels"] = sum(row.times for row in trace.rows)
        else:
            self.gaps["kernels"] = trace.fault

    def _count_flops(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            self._run(self.draws[0])
        self.facts["flops"] = counter.get_total_flops()

    def _probe(self) -> None:
        """Change one tensor after the other; whole numbers last, since they may be indices, and break the device."""
        if not self.facts.get("repeatable"):
            self.gaps["probe"] = "outputs change without any change"
            return
        prober = Prober(self._is_same, self._is_moved, seed=SEEDS[0], budget_s=PROBE_S)
        inputs = input_subjects(self.draws[0], self.draws[1], self._run)
        weights = weight_subjects(self.model, self.other_model, lambda: self._run(self.draws[0]))
        subjects = [subject for subject in (*inputs, *weights) if subject.tensor.numel()]
        whole = [subject for subject in subjects if is_whole(subject.tensor)]
        try:
            prober.probe([subject for subject in subjects if not is_whole(subject.tensor)])
            prober.probe(whole)
        finally:
            self.facts["sensitivities"] = prober.sensitivities
        if not prober.in_time:
            self.gaps["probe"] = f"not everything was changed within {PROBE_S:g} s"

    def _is_same(self, outputs: Sequence[Tensor]) -> bool:
        working = self.expected.working
        if self.facts.get("deterministic") is False:
            return not self._is_moved(outputs)
        return len(outputs) == len(working) and all(map(integrity.same_bits, outputs, working))

    def _is_moved(self, outputs: Sequence[Tensor]) -> bool:
        return not self._passes(outputs, self.strict)


def _keeps_tensors(model: nn.Module) -> bool:
    """Whether a module holds tensors that are neither parameters nor buffers, and stay where they were made."""
    return any(isinstance(value, Tensor) for module in model.modules() for value in vars(module).values())


def _written(audit: Audit) -> dict[str, Any]:
    return audit.model_dump(mode="json", round_trip=True)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"[:_MOST_TEXT]


def main(conn: int, device: str, memory_bytes: int | None) -> None:
    """Serve audits in this fresh fork while all is well, with a limit on its private memory."""
    channel = Channel(socket.socket(fileno=conn))
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    Path("/proc/self/oom_score_adj").write_text("1000")

    def answer(job: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        request, environment = (
            AuditRequest.model_validate(job["request"]),
            Environment.model_validate(job["environment"]),
        )
        auditor = Auditor(request, environment, channel.send)
        return {"audit": _written(auditor.audit())}, not auditor.failed

    serve(channel, device, answer)
