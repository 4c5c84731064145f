"""The tables. Rows never leave `drkernel_q.store`: its functions take and give the values of the field.

Texts that repeat (problems, kernels, messages, environments) are stored once under their content hash. Rows
are only ever added; the exceptions are links that become known later, such as the turn of an evaluation, and audits
and lessons, of which the latest takes the place of the one before.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, get_args

from sqlalchemy import CheckConstraint, Index, MetaData, Table, UniqueConstraint, inspect
from sqlmodel import Field, SQLModel

from drkernel_q.evaluation import Failure, Integrity, Outcome
from drkernel_q.lesson import Lesson
from drkernel_q.profile import Origin
from drkernel_q.store.column import PackedFloats, PackedInts, SafeJson, SafeText, UtcDateTime
from drkernel_q.trajectory import Message

#: Constraints need names of their own, or SQLite could never drop one.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


#: What an evaluation came to, and when and where it was made: columns that an index holds.
_VERDICT = ("outcome", "integrity", "speedup_low", "speedup", "speedup_high", "profile_ratio")
_COURSE = ("submitted_at", "finished_at", "judged_s", "worker")


def _one_of(column: str, values: Iterable[str]) -> CheckConstraint:
    allowed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=column)


def _values_of(model: Any, field: str) -> tuple[str, ...]:
    """The texts that a field takes; NULL passes any check."""
    annotation = model.model_fields[field].annotation
    literal = next((part for part in get_args(annotation) if get_args(part)), annotation)
    return get_args(literal)


class Row(SQLModel):
    """Base of all rows; its metadata is what the migrations are compared with."""

    metadata = MetaData(naming_convention=NAMING)


class ProblemRow(Row, table=True):
    """A reference, under the first name that it came with."""

    __tablename__ = "problems"
    __table_args__ = (Index("ix_problems_name_hash", "name", "hash"),)

    hash: str = Field(primary_key=True, sa_type=SafeText)
    name: str = Field(sa_type=SafeText)
    source: str = Field(sa_type=SafeText)


class KernelRow(Row, table=True):
    """A candidate, under the first name that it came with."""

    __tablename__ = "kernels"

    hash: str = Field(primary_key=True, sa_type=SafeText)
    name: str = Field(sa_type=SafeText)
    source: str = Field(sa_type=SafeText)
    source_bytes: int
    """Length of the source in UTF-8."""


class RunRow(Row, table=True):
    """One launch of a command that evaluates or trains."""

    __tablename__ = "runs"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True, sa_type=SafeText)
    kind: str = Field(sa_type=SafeText)
    """Such as `eval`, `train` or `stts`."""
    created_at: datetime = Field(sa_type=UtcDateTime)
    settings: dict[str, Any] | None = Field(default=None, sa_type=SafeJson)
    """The resolved settings; NULL until somebody says them."""


class TrajectoryRow(Row, table=True):
    """One rollout for one problem."""

    __tablename__ = "trajectories"
    __table_args__ = (
        UniqueConstraint("run_id", "problem_hash", "number"),
        CheckConstraint("number >= 1", name="number"),
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="runs.id")
    problem_hash: str = Field(foreign_key="problems.hash", index=True, sa_type=SafeText)
    number: int
    """Position among the rollouts of this problem in this run, from 1."""


class MessageRow(Row, table=True):
    """A chat message after a certain history: the hash covers both, so a shared prefix is stored once."""

    __tablename__ = "messages"
    __table_args__ = (_one_of("role", _values_of(Message, "role")),)

    hash: str = Field(primary_key=True, sa_type=SafeText)
    parent_hash: str | None = Field(default=None, foreign_key="messages.hash", sa_type=SafeText)
    role: str = Field(sa_type=SafeText)
    content: str = Field(sa_type=SafeText)


class TurnRow(Row, table=True):
    """One model call."""

    __tablename__ = "turns"
    __table_args__ = (
        UniqueConstraint("trajectory_id", "number"),
        CheckConstraint("number >= 1", name="number"),
        Index("ix_turns_of_trajectory", "trajectory_id", "number", "policy_version", "id"),
    )

    id: int | None = Field(default=None, primary_key=True)
    trajectory_id: int = Field(foreign_key="trajectories.id")
    number: int
    prompt_hash: str | None = Field(default=None, foreign_key="messages.hash", sa_type=SafeText)
    """Last message of the prompt; the ones before it are its ancestors. NULL: the prompt was empty."""
    completion_hash: str = Field(foreign_key="messages.hash", sa_type=SafeText)
    """The answer, as the message after the prompt."""
    kernel_hash: str | None = Field(default=None, foreign_key="kernels.hash", index=True, sa_type=SafeText)
    kernel_name: str | None = Field(default=None, sa_type=SafeText)
    prompt_ids: tuple[int, ...] = Field(sa_type=PackedInts)
    output_ids: tuple[int, ...] = Field(sa_type=PackedInts)
    logprobs: tuple[float, ...] = Field(sa_type=PackedFloats)
    finish_reason: str | None = Field(default=None, sa_type=SafeText)
    policy_version: int | None = None


class LessonRow(Row, table=True):
    """What a training step made of one turn; the columns are those of `Lesson`."""

    __tablename__ = "lessons"
    __table_args__ = (CheckConstraint("step >= 1", name="step"), _one_of("mismatch", _values_of(Lesson, "mismatch")))

    turn_id: int = Field(foreign_key="turns.id", primary_key=True)
    step: int = Field(index=True)
    reward: float | None = None
    turn_return: float | None = None
    advantage: float | None = None
    mismatch: str | None = Field(default=None, sa_type=SafeText)
    mean_log_ratio: float | None = None
    keep_probability: float | None = None
    draw: float | None = None
    lazy: bool


class EnvironmentRow(Row, table=True):
    """Where and with what evaluations ran; the columns are those of `Environment`."""

    __tablename__ = "environments"

    hash: str = Field(primary_key=True, sa_type=SafeText)
    device: str = Field(sa_type=SafeText)
    device_name: str = Field(sa_type=SafeText)
    device_kind: str = Field(sa_type=SafeText)
    host: str = Field(sa_type=SafeText)
    python: str = Field(sa_type=SafeText)
    torch: str = Field(sa_type=SafeText)
    triton: str = Field(sa_type=SafeText)
    driver: str | None = Field(default=None, sa_type=SafeText)
    drkq: str = Field(sa_type=SafeText)
    isolation: list[str] = Field(sa_type=SafeJson)


class EvaluationRow(Row, table=True):
    """The facts of one finished evaluation: the whole document, and the columns that people ask by."""

    __tablename__ = "evaluations"
    __table_args__ = (
        _one_of("outcome", Outcome),
        _one_of("integrity", Integrity),
        CheckConstraint("attempt >= 1", name="attempt"),
        CheckConstraint("speedup >= 0", name="speedup"),
        CheckConstraint("profile_ratio >= 0", name="profile_ratio"),
        # What questions about whole runs need, so that none reads a document.
        Index("ix_evaluations_of_run", "run_id", "problem_hash", "device_kind", *_VERDICT, "turn_id", *_COURSE, "id"),
        Index("ix_evaluations_of_turn", "turn_id", "id", *_VERDICT),
    )

    id: int | None = Field(default=None, primary_key=True)
    request_id: str | None = Field(default=None, unique=True, sa_type=SafeText)
    """NULL while only the trajectory is known that the facts came with."""
    problem_hash: str = Field(foreign_key="problems.hash", index=True, sa_type=SafeText)
    kernel_hash: str = Field(foreign_key="kernels.hash", index=True, sa_type=SafeText)
    kernel_name: str = Field(sa_type=SafeText)
    run_id: int | None = Field(default=None, foreign_key="runs.id", index=True)
    turn_id: int | None = Field(default=None, foreign_key="turns.id")
    content_key: str | None = Field(default=None, index=True, sa_type=SafeText)
    """`EvaluationRequest.content_key`: evaluations with the same key measured the same thing."""
    protocol: dict[str, Any] | None = Field(default=None, sa_type=SafeJson)
    device_kind: str = Field(sa_type=SafeText)
    outcome: str = Field(sa_type=SafeText)
    integrity: str = Field(sa_type=SafeText)
    """What the judge decided; later verdicts are in `verdicts`."""
    rules_version: str | None = Field(default=None, sa_type=SafeText)
    """Version of the rules that it decided by; NULL before they had one."""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    profile_ratio: float | None = None
    reference_ms: float | None = None
    candidate_ms: float | None = None
    error: str | None = Field(default=None, sa_type=SafeText)
    judged_s: float | None = None
    """Seconds that the judge took; NULL where none worked for this request, and before it was kept."""
    document: dict[str, Any] = Field(sa_type=SafeJson)
    """The `Evaluation`, whole, with its computed fields."""
    document_hash: str = Field(index=True, sa_type=SafeText)
    environment_hash: str = Field(foreign_key="environments.hash", sa_type=SafeText)
    worker: str | None = Field(default=None, sa_type=SafeText)
    attempt: int = 1
    measured_for: str | None = Field(default=None, sa_type=SafeText)
    """Request that the facts were found for, when they are those of another one; NULL for all that were measured."""
    submitted_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    finished_at: datetime = Field(index=True, sa_type=UtcDateTime)


class AttemptRow(Row, table=True):
    """One answered attempt at a request; one that failed says why."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("request_id", "attempt"),
        CheckConstraint("attempt >= 1", name="attempt"),
        _one_of("failure_kind", _values_of(Failure, "kind")),
    )

    id: int | None = Field(default=None, primary_key=True)
    request_id: str = Field(sa_type=SafeText)
    attempt: int
    problem_hash: str = Field(foreign_key="problems.hash", sa_type=SafeText)
    kernel_hash: str = Field(foreign_key="kernels.hash", sa_type=SafeText)
    run_id: int | None = Field(default=None, foreign_key="runs.id")
    worker: str = Field(sa_type=SafeText)
    failure_kind: str | None = Field(default=None, sa_type=SafeText)
    """NULL: the attempt brought an evaluation."""
    failure_message: str | None = Field(default=None, sa_type=SafeText)
    finished_at: datetime = Field(index=True, sa_type=UtcDateTime)


class AuditRow(Row, table=True):
    """What was measured of a problem on one kind of device; a later audit takes the place of an earlier one."""

    __tablename__ = "audits"
    __table_args__ = (UniqueConstraint("problem_hash", "device_kind", "version"),)

    id: int | None = Field(default=None, primary_key=True)
    problem_hash: str = Field(foreign_key="problems.hash", sa_type=SafeText)
    device_kind: str = Field(sa_type=SafeText)
    version: str = Field(sa_type=SafeText)
    """`AUDIT_VERSION` of the worker."""
    speed_rewarded: bool
    reference_ms: float | None = None
    unusable: str | None = Field(default=None, sa_type=SafeText)
    document: dict[str, Any] = Field(sa_type=SafeJson)
    """The `Audit`, whole, with its computed fields."""
    environment_hash: str = Field(foreign_key="environments.hash", sa_type=SafeText)
    worker: str = Field(sa_type=SafeText)
    created_at: datetime = Field(sa_type=UtcDateTime)


class AuditFlagRow(Row, table=True):
    """One flag of an audit, by the rules that held when it was stored."""

    __tablename__ = "audit_flags"
    __table_args__ = (UniqueConstraint("audit_id", "code"),)

    id: int | None = Field(default=None, primary_key=True)
    audit_id: int = Field(foreign_key="audits.id")
    code: str = Field(index=True, sa_type=SafeText)
    detail: str = Field(sa_type=SafeText)


class EvidenceRow(Row, table=True):
    """One reason for an integrity verdict."""

    __tablename__ = "evidence"

    id: int | None = Field(default=None, primary_key=True)
    evaluation_id: int = Field(foreign_key="evaluations.id", index=True)
    code: str = Field(index=True, sa_type=SafeText)
    weight: str | None = Field(default=None, sa_type=SafeText)
    """How much it decides (`drkernel_q.observation.Weight`); NULL before weights were kept."""
    detail: str = Field(sa_type=SafeText)


class VerdictRow(Row, table=True):
    """What one version of the rules makes of the facts of an evaluation that was judged by another."""

    __tablename__ = "verdicts"
    __table_args__ = (UniqueConstraint("evaluation_id", "rules_version"), _one_of("integrity", Integrity))

    id: int | None = Field(default=None, primary_key=True)
    """Of several verdicts about an evaluation the one with the highest id stands."""
    evaluation_id: int = Field(foreign_key="evaluations.id")
    rules_version: str = Field(sa_type=SafeText)
    integrity: str = Field(sa_type=SafeText)
    evidence: list[dict[str, str]] = Field(sa_type=SafeJson)
    speedup: float | None = None
    """Computed again from raw times; NULL where there are none, and then that of the evaluation stands."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    baselines: list[dict[str, Any]] = Field(sa_type=SafeJson)
    """The same for every baseline, as in the document."""
    judged_at: datetime = Field(sa_type=UtcDateTime)


class ArtefactRow(Row, table=True):
    """Raw measurements of one evaluation, from which its speedup can be computed again."""

    __tablename__ = "artefacts"

    evaluation_id: int = Field(foreign_key="evaluations.id", primary_key=True)
    size_bytes: int
    packed: bytes
    """JSON under zlib (`drkernel_q.artefact`)."""


class ProfileKernelRow(Row, table=True):
    """One kernel that ran on the device during an evaluation's profile."""

    __tablename__ = "profile_kernels"
    __table_args__ = (_one_of("origin", Origin),)

    id: int | None = Field(default=None, primary_key=True)
    evaluation_id: int = Field(foreign_key="evaluations.id", index=True)
    name: str = Field(sa_type=SafeText)
    """Not indexed: names of template instances outgrow what PostgreSQL can index."""
    device_us: float
    launches: float
    origin: str = Field(sa_type=SafeText)


def table(row: type[Row]) -> Table:
    """Table of a row class, for statements that are not about whole rows."""
    found = inspect(row).local_table
    assert isinstance(found, Table)
    return found
