"""Fills a store by its tables, some hundred times faster than by its functions, with the rows that these would write.

One training run: 16 trajectories of 3 turns for each of 16 problems a step, problems coming back after a while; every
turn has its own messages, tokens, kernel, evaluation, attempt and lesson. Hacks become rarer over the steps, and lazy
kernels more frequent. What it leaves out: raw measurements (`artefacts`), which no named query reads.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert

from drkernel_q.evaluation import Evaluation, Protocol
from drkernel_q.observation import Evidence, Weight
from drkernel_q.problem import Problem
from drkernel_q.store import Store, facts
from drkernel_q.store.table import (
    AttemptRow,
    EvaluationRow,
    EvidenceRow,
    KernelRow,
    LessonRow,
    MessageRow,
    ProfileKernelRow,
    Row,
    RunRow,
    TrajectoryRow,
    TurnRow,
    table,
)
from drkernel_q.store.write import add_problems
from tests.values import an_evaluation, observed

RUN = "run"
TURNS, ROLLOUTS = 3, 16
#: Different problems, and how many of them a step asks about.
PROBLEMS, PROMPTS = 2_000, 16
#: Rows of a kind that are inserted with one statement, about.
CHUNK = 2_000
#: Tokens of a prompt and of an answer.
PROMPT_TOKENS, OUTPUT_TOKENS = 200, 200
SOURCE = "import triton\n" + "# a kernel of ordinary length\n" * 60
MESSAGE = "Here is a kernel.\n" * 20
WORKERS = 8
_SPEEDS = tuple(round(0.5 + 0.02 * number, 2) for number in range(100))
_CODES = (("A4", Weight.HARD), ("B1", Weight.HARD), ("C3", Weight.HARD), ("G5", Weight.SOFT))


class Sample(NamedTuple):
    """An evaluation as it comes, and its columns."""

    evaluation: Evaluation
    columns: dict[str, Any]


def samples(kind: str) -> list[Sample]:
    """Make evaluations of one kind: fast, lazy, wrong or rejected."""
    full: dict[str, Any] = {"protocol": Protocol(), "observations": observed(), "rules_version": "1"}
    full |= {"durations_s": {"reference": 0.1, "correctness": 0.6, "timing": 1.0, "profile": 0.2, "total": 2.1}}
    if kind == "wrong":
        error = "{} of 4096 values are wrong\nmore"
        made = [an_evaluation("wrong_value", "unknown", error=error.format(n), **full) for n in range(1, 9)]
    elif kind == "rejected":
        made = [
            an_evaluation("correct", "rejected", speedup=9.0, profile_ratio=0.1, **full).model_copy(
                update={"evidence": (Evidence(code=code, weight=weight, detail="seen"),)}
            )
            for code, weight in _CODES
        ]
    else:
        ratio = 0.9 if kind == "fast" else 0.05
        made = [an_evaluation(speedup=speed, profile_ratio=ratio, **full) for speed in _SPEEDS]
    return [Sample(each, facts.columns(each)) for each in made]


class Filler:
    """Adds trajectories to an empty store, or to one that it has begun."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.turns = 0
        self._samples = {kind: samples(kind) for kind in ("fast", "lazy", "wrong", "rejected")}
        with store.writing() as connection:
            facts.add_environments(connection, [self._samples["fast"][0].evaluation.environment])
            connection.execute(insert(table(RunRow)), {"id": 1, "name": RUN, "kind": "train", "created_at": _at(0)})

    def fill(self, turns: int) -> None:
        """Add whole groups until there are so many turns."""
        while self.turns < turns:
            groups = min(CHUNK // (TURNS * ROLLOUTS), (turns - self.turns) // (TURNS * ROLLOUTS) + 1)
            with self.store.writing() as connection:
                self._add(connection, groups)

    def _add(self, connection: Connection, groups: int) -> None:
        first = self.turns // (TURNS * ROLLOUTS)
        rows: dict[type[Row], list[dict[str, Any]]] = {
            row: []
            for row in (
                KernelRow, TrajectoryRow, MessageRow, TurnRow, EvaluationRow, AttemptRow, EvidenceRow, ProfileKernelRow,
                LessonRow,
            )
        }  # fmt: skip
        asked = [(group, _problem(group % PROBLEMS)) for group in range(first, first + groups)]
        add_problems(connection, [problem for _, problem in asked])
        for group, problem in asked:
            for rollout in range(ROLLOUTS):
                self._add_trajectory(rows, group, problem, group // PROBLEMS * ROLLOUTS + rollout + 1)
        for row, values in rows.items():
            if values:
                connection.execute(insert(table(row)), values)

    def _add_trajectory(self, rows: dict[type[Row], list[Any]], group: int, problem: Problem, number: int) -> None:
        trajectory, step = self.turns // TURNS + 1, group // PROMPTS + 1
        rows[TrajectoryRow].append({"id": trajectory, "run_id": 1, "problem_hash": problem.hash, "number": number})
        parent = None
        for place in range(1, TURNS + 1):
            self.turns += 1
            turn, kernel = self.turns, f"b2:{self.turns:032x}"
            for role in ("user", "assistant"):
                message = {"hash": f"{role}{turn}", "parent_hash": parent, "role": role, "content": MESSAGE}
                rows[MessageRow].append(message)
                parent = message["hash"]
            source = f"{SOURCE}# {turn}"
            rows[KernelRow].append({"hash": kernel, "name": "k", "source": source, "source_bytes": len(source)})
            rows[TurnRow].append(
                {
                    "id": turn,
                    "trajectory_id": trajectory,
                    "number": place,
                    "prompt_hash": f"user{turn}",
                    "completion_hash": f"assistant{turn}",
                    "kernel_hash": kernel,
                    "kernel_name": "k",
                    "prompt_ids": _PROMPT,
                    "output_ids": _OUTPUT,
                    "logprobs": _LOGPROBS,
                    "finish_reason": "stop",
                    "policy_version": step - 1,
                }
            )
            rows[LessonRow].append({"turn_id": turn, "step": step} | _LESSON)
            self._add_evaluation(rows, problem, kernel, turn, self._choose(turn, step))

    def _choose(self, turn: int, step: int) -> Sample:
        """Of a hundred turns 30 are wrong, first 20 and later 3 rejected, and of the others more and more lazy."""
        draw = turn * 7_919 % 100
        hacks = max(3, 20 - step // 20)
        kind = (
            "wrong" if draw < 30 else "rejected" if draw < 30 + hacks else "fast" if draw < 85 - step // 40 else "lazy"
        )
        some = self._samples[kind]
        return some[turn * 31 % len(some)]

    def _add_evaluation(
        self, rows: dict[type[Row], list[Any]], problem: Problem, kernel: str, turn: int, sample: Sample
    ) -> None:
        about = {"request_id": f"{turn:032x}", "problem_hash": problem.hash, "kernel_hash": kernel, "run_id": 1}
        about |= {"worker": f"box:cuda:{turn % WORKERS}", "attempt": 1, "finished_at": _at(turn // WORKERS * 2.2 + 30)}
        lost = turn % 500 == 0
        failure = {"failure_kind": "infrastructure", "failure_message": "the device was lost"} if lost else {}
        rows[AttemptRow].append(about | _NO_FAILURE | failure)
        if lost:
            return
        rows[EvaluationRow].append(
            sample.columns
            | about
            | {
                "id": turn,
                "kernel_name": "k",
                "turn_id": turn,
                "judged_s": sample.evaluation.durations_s["total"],
                "content_key": f"b2:{turn // 2:032x}",
                "protocol": _PROTOCOL,
                "submitted_at": _at(turn // WORKERS * 2.2 + turn * 13 % 30),
                "document_hash": f"b2:{turn:032x}",
            }
        )
        rows[EvidenceRow] += [
            {"evaluation_id": turn} | each.model_dump(mode="json") for each in sample.evaluation.evidence
        ]
        for number, each in enumerate(sample.evaluation.profile.kernels if sample.evaluation.profile else ()):
            profiled = {"evaluation_id": turn, "name": each.name if number == 0 else f"at::{turn % 50}"}
            measured = {"device_us": each.device_us, "launches": each.launches, "origin": each.origin.value}
            rows[ProfileKernelRow].append(profiled | measured)


_PROMPT, _OUTPUT = tuple(range(PROMPT_TOKENS)), tuple(range(OUTPUT_TOKENS))
_LOGPROBS = (-0.5,) * OUTPUT_TOKENS
_LESSON = {"reward": 0.5, "turn_return": 1.0, "advantage": 0.1, "mismatch": "kept", "mean_log_ratio": 1e-5}
_LESSON |= {"keep_probability": 1.0, "draw": 0.5, "lazy": False}
_NO_FAILURE = {"failure_kind": None, "failure_message": None}
_PROTOCOL = Protocol().model_dump(mode="json")


def _problem(number: int) -> Problem:
    return Problem(name=f"p{number}", source=f"class Model: {number}")


def _at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
