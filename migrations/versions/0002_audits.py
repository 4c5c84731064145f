"""The audits of problems.

Why: whether speed on a problem is worth a reward is measured once, and asked for with every reward.

Revision: 0002
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audits",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("problem_hash", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("speed_rewarded", sa.Boolean(), nullable=False),
        sa.Column("reference_ms", sa.Float(), nullable=True),
        sa.Column("unusable", sa.Text(), nullable=True),
        sa.Column("document", JSON, nullable=False),
        sa.Column("environment_hash", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_hash"], ["environments.hash"], name=op.f("fk_audits_environment_hash_environments")
        ),
        sa.ForeignKeyConstraint(["problem_hash"], ["problems.hash"], name=op.f("fk_audits_problem_hash_problems")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audits")),
        sa.UniqueConstraint(
            "problem_hash", "device_kind", "version", name=op.f("uq_audits_problem_hash_device_kind_version")
        ),
    )
    op.create_table(
        "audit_flags",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("audit_id", sa.Integer(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["audit_id"], ["audits.id"], name=op.f("fk_audit_flags_audit_id_audits")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_flags")),
        sa.UniqueConstraint("audit_id", "code", name=op.f("uq_audit_flags_audit_id_code")),
    )
    op.create_index(op.f("ix_audit_flags_code"), "audit_flags", ["code"])


def downgrade() -> None:
    op.drop_table("audit_flags")
    op.drop_table("audits")
