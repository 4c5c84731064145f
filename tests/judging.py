"""Judging without a queue: a zygote and its judges, for tests of what happens on a device."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from drkernel_q import rules
from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure, Protocol
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem, builtin_files, load_problem
from drkernel_q.settings import Settings
from workers.device import find_device
from workers.evaluator import Evaluator, Judged

KERNELS = Path(__file__).parent / "kernels"
EXAMPLES = Path(__file__).parents[1] / "examples"


def builtin(name: str) -> Problem:
    """Load a built-in problem."""
    return load_problem(builtin_files()[name])


class Bench:
    """Judges sources one after the other on one device, through the worker's own evaluator."""

    def __init__(self, device: str, *, memory_bytes: int = 3 * 2**30, lanes: int = 1) -> None:
        """Start a zygote for `device`, as one of its `lanes`."""
        os.environ.setdefault("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        self.cache = tempfile.TemporaryDirectory(prefix="drkq-bench-")
        folder = Path(self.cache.name)
        settings = Settings(cache_dir=folder, state_dir=folder, candidate_memory_bytes=memory_bytes, lanes=lanes)
        self.evaluator = Evaluator(settings, find_device(device), "bench")

    def judged(self, problem: Problem, source: str, *, deadline_s: float = 50.0, **protocol: Any) -> Judged | Failure:
        """Judge `source`; return facts with raw measurements, or the reason why there are none."""
        options = {"kernel_deadline_s": 20.0, "timing_budget_s": 0.3} | protocol
        request = EvaluationRequest(
            id="0" * 32,
            problem=problem,
            kernel=Kernel(source=source),
            protocol=Protocol(**options),
            deadline_s=deadline_s,
            submitted_at="2026-01-01T00:00:00Z",
        )
        return self.evaluator.judge(request, lambda: False)

    def result(self, problem: Problem, source: str, **options: Any) -> Evaluation | Failure:
        """Judge `source`; return facts or the reason why there are none.

        Whatever the verdict, the rules must come to the same from the document alone.
        """
        judged = self.judged(problem, source, **options)
        if isinstance(judged, Failure):
            return judged
        stored = Evaluation.model_validate_json(judged.evaluation.model_dump_json(round_trip=True))
        assert stored.revised(rules.judge(stored)) == judged.evaluation
        return judged.evaluation

    def judge(self, problem: Problem, source: str, **options: Any) -> Evaluation:
        """Judge `source` and insist on facts."""
        result = self.result(problem, source, **options)
        assert isinstance(result, Evaluation), result
        return result

    def audit(self, problem: Problem, *, deadline_s: float = 50.0, compile: bool = False) -> Audit | Failure:
        """Audit `problem`; return facts or the reason why there are none."""
        request = AuditRequest(
            id="0" * 32,
            problem=problem,
            deadline_s=deadline_s,
            compile=compile,
            submitted_at="2026-01-01T00:00:00Z",
        )
        return self.evaluator.audit(request, lambda: False)

    def close(self) -> None:
        """End the zygote."""
        self.evaluator.close()
        self.cache.cleanup()
