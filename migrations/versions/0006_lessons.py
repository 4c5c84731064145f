"""What a training step made of each turn.

Why: rewards, advantages and rejections are computed from facts, but draws are made once, and a gradient must be
explained long after its step.

Revision: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lessons",
        sa.Column("turn_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("turn_return", sa.Float(), nullable=True),
        sa.Column("advantage", sa.Float(), nullable=True),
        sa.Column("mismatch", sa.Text(), nullable=True),
        sa.Column("mean_log_ratio", sa.Float(), nullable=True),
        sa.Column("keep_probability", sa.Float(), nullable=True),
        sa.Column("draw", sa.Float(), nullable=True),
        sa.Column("lazy", sa.Boolean(), nullable=False),
        sa.CheckConstraint("step >= 1", name=op.f("ck_lessons_step")),
        sa.CheckConstraint("mismatch IN ('kept', 'band', 'veto', 'nonfinite')", name=op.f("ck_lessons_mismatch")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_lessons_turn_id_turns")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_lessons")),
    )
    op.create_index(op.f("ix_lessons_step"), "lessons", ["step"])


def downgrade() -> None:
    op.drop_table("lessons")
