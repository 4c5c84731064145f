"""Verdicts that are revised, and the raw measurements that they are revised from.

Why: rules that turn facts into verdicts get better, and an evaluation must not need a device again for that.

Revision: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "artefacts",
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name=op.f("fk_artefacts_evaluation_id_evaluations")
        ),
        sa.PrimaryKeyConstraint("evaluation_id", name=op.f("pk_artefacts")),
    )
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("rules_version", sa.Text(), nullable=False),
        sa.Column("integrity", sa.Text(), nullable=False),
        sa.Column("evidence", JSON, nullable=False),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("speedup_low", sa.Float(), nullable=True),
        sa.Column("speedup_high", sa.Float(), nullable=True),
        sa.Column("baselines", JSON, nullable=False),
        sa.Column("judged_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "integrity IN ('clean', 'suspicious', 'rejected', 'unknown')", name=op.f("ck_verdicts_integrity")
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name=op.f("fk_verdicts_evaluation_id_evaluations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
        sa.UniqueConstraint("evaluation_id", "rules_version", name=op.f("uq_verdicts_evaluation_id_rules_version")),
    )
    op.add_column("evaluations", sa.Column("rules_version", sa.Text(), nullable=True))
    op.add_column("evidence", sa.Column("weight", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("evidence") as evidence:
        evidence.drop_column("weight")
    with op.batch_alter_table("evaluations") as evaluations:
        evaluations.drop_column("rules_version")
    op.drop_table("verdicts")
    op.drop_table("artefacts")
