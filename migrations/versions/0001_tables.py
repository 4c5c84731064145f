"""The tables of evaluations and trajectories.

Why: everything that a worker measured and a model wrote has to outlive the process that asked for it.

Revision: 0001, the first
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "environments",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("python", sa.Text(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("triton", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=True),
        sa.Column("drkq", sa.Text(), nullable=False),
        sa.Column("isolation", JSON, nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_environments")),
    )
    op.create_table(
        "kernels",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_bytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_kernels")),
    )
    op.create_table(
        "messages",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("parent_hash", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.CheckConstraint("role IN ('system', 'user', 'assistant')", name=op.f("ck_messages_role")),
        sa.ForeignKeyConstraint(["parent_hash"], ["messages.hash"], name=op.f("fk_messages_parent_hash_messages")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_messages")),
    )
    op.create_table(
        "problems",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_problems")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("settings", JSON, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("name", name=op.f("uq_runs_name")),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("problem_hash", sa.Text(), nullable=False),
        sa.Column("kernel_hash", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("failure_kind", sa.Text(), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "failure_kind IN ('infrastructure', 'problem', 'cancelled', 'deadline')",
            name=op.f("ck_attempts_failure_kind"),
        ),
        sa.CheckConstraint("attempt >= 1", name=op.f("ck_attempts_attempt")),
        sa.ForeignKeyConstraint(["kernel_hash"], ["kernels.hash"], name=op.f("fk_attempts_kernel_hash_kernels")),
        sa.ForeignKeyConstraint(["problem_hash"], ["problems.hash"], name=op.f("fk_attempts_problem_hash_problems")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("request_id", "attempt", name=op.f("uq_attempts_request_id_attempt")),
    )
    op.create_index(op.f("ix_attempts_finished_at"), "attempts", ["finished_at"])

    op.create_table(
        "trajectories",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("problem_hash", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.CheckConstraint("number >= 1", name=op.f("ck_trajectories_number")),
        sa.ForeignKeyConstraint(
            ["problem_hash"], ["problems.hash"], name=op.f("fk_trajectories_problem_hash_problems")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_trajectories_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trajectories")),
        sa.UniqueConstraint(
            "run_id", "problem_hash", "number", name=op.f("uq_trajectories_run_id_problem_hash_number")
        ),
    )
    op.create_index(op.f("ix_trajectories_problem_hash"), "trajectories", ["problem_hash"])

    op.create_table(
        "turns",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trajectory_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("prompt_hash", sa.Text(), nullable=True),
        sa.Column("completion_hash", sa.Text(), nullable=False),
        sa.Column("kernel_hash", sa.Text(), nullable=True),
        sa.Column("kernel_name", sa.Text(), nullable=True),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("output_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("policy_version", sa.Integer(), nullable=True),
        sa.CheckConstraint("number >= 1", name=op.f("ck_turns_number")),
        sa.ForeignKeyConstraint(["completion_hash"], ["messages.hash"], name=op.f("fk_turns_completion_hash_messages")),
        sa.ForeignKeyConstraint(["kernel_hash"], ["kernels.hash"], name=op.f("fk_turns_kernel_hash_kernels")),
        sa.ForeignKeyConstraint(["prompt_hash"], ["messages.hash"], name=op.f("fk_turns_prompt_hash_messages")),
        sa.ForeignKeyConstraint(
            ["trajectory_id"], ["trajectories.id"], name=op.f("fk_turns_trajectory_id_trajectories")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
        sa.UniqueConstraint("trajectory_id", "number", name=op.f("uq_turns_trajectory_id_number")),
    )
    op.create_index(op.f("ix_turns_kernel_hash"), "turns", ["kernel_hash"])

    op.create_table(
        "evaluations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("problem_hash", sa.Text(), nullable=False),
        sa.Column("kernel_hash", sa.Text(), nullable=False),
        sa.Column("kernel_name", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("turn_id", sa.Integer(), nullable=True),
        sa.Column("content_key", sa.Text(), nullable=True),
        sa.Column("protocol", JSON, nullable=True),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("integrity", sa.Text(), nullable=False),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("speedup_low", sa.Float(), nullable=True),
        sa.Column("speedup_high", sa.Float(), nullable=True),
        sa.Column("profile_ratio", sa.Float(), nullable=True),
        sa.Column("reference_ms", sa.Float(), nullable=True),
        sa.Column("candidate_ms", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("document", JSON, nullable=False),
        sa.Column("document_hash", sa.Text(), nullable=False),
        sa.Column("environment_hash", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "integrity IN ('clean', 'suspicious', 'rejected', 'unknown')",
            name=op.f("ck_evaluations_integrity"),
        ),
        sa.CheckConstraint(
            "outcome IN ('correct', 'wrong_value', 'wrong_shape', 'wrong_dtype', "
            "'compile_error', 'runtime_error', 'out_of_memory', 'timeout', 'crashed')",
            name=op.f("ck_evaluations_outcome"),
        ),
        sa.CheckConstraint("attempt >= 1", name=op.f("ck_evaluations_attempt")),
        sa.CheckConstraint("profile_ratio >= 0", name=op.f("ck_evaluations_profile_ratio")),
        sa.CheckConstraint("speedup >= 0", name=op.f("ck_evaluations_speedup")),
        sa.ForeignKeyConstraint(
            ["environment_hash"],
            ["environments.hash"],
            name=op.f("fk_evaluations_environment_hash_environments"),
        ),
        sa.ForeignKeyConstraint(["kernel_hash"], ["kernels.hash"], name=op.f("fk_evaluations_kernel_hash_kernels")),
        sa.ForeignKeyConstraint(["problem_hash"], ["problems.hash"], name=op.f("fk_evaluations_problem_hash_problems")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_evaluations_run_id_runs")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_evaluations_turn_id_turns")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("request_id", name=op.f("uq_evaluations_request_id")),
    )
    op.create_index(op.f("ix_evaluations_content_key"), "evaluations", ["content_key"])
    op.create_index(op.f("ix_evaluations_document_hash"), "evaluations", ["document_hash"])
    op.create_index(op.f("ix_evaluations_finished_at"), "evaluations", ["finished_at"])
    op.create_index(op.f("ix_evaluations_kernel_hash"), "evaluations", ["kernel_hash"])
    op.create_index(op.f("ix_evaluations_problem_hash"), "evaluations", ["problem_hash"])
    op.create_index(op.f("ix_evaluations_run_id"), "evaluations", ["run_id"])
    op.create_index(op.f("ix_evaluations_turn_id"), "evaluations", ["turn_id"])

    op.create_table(
        "evidence",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name=op.f("fk_evidence_evaluation_id_evaluations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evidence")),
    )
    op.create_index(op.f("ix_evidence_code"), "evidence", ["code"])
    op.create_index(op.f("ix_evidence_evaluation_id"), "evidence", ["evaluation_id"])

    op.create_table(
        "profile_kernels",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("device_us", sa.Float(), nullable=False),
        sa.Column("launches", sa.Float(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "origin IN ('candidate', 'torch', 'compiler', 'memory', 'other')",
            name=op.f("ck_profile_kernels_origin"),
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name=op.f("fk_profile_kernels_evaluation_id_evaluations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profile_kernels")),
    )
    op.create_index(op.f("ix_profile_kernels_evaluation_id"), "profile_kernels", ["evaluation_id"])


def downgrade() -> None:
    op.drop_table("profile_kernels")
    op.drop_table("evidence")
    op.drop_table("evaluations")
    op.drop_table("turns")
    op.drop_table("trajectories")
    op.drop_table("attempts")
    op.drop_table("runs")
    op.drop_table("problems")
    op.drop_table("messages")
    op.drop_table("kernels")
    op.drop_table("environments")
