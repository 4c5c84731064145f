"""Kernels of libraries.

Why: a kernel of cuBLAS or cuDNN is told from torch's own, whether torch called the library or the candidate did.

Revision: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _allow("candidate", "torch", "library", "compiler", "memory", "other")


def downgrade() -> None:
    op.execute("UPDATE profile_kernels SET origin = 'other' WHERE origin = 'library'")
    _allow("candidate", "torch", "compiler", "memory", "other")


def _allow(*origins: str) -> None:
    allowed = ", ".join(f"'{origin}'" for origin in origins)
    name = op.f("ck_profile_kernels_origin")
    with op.batch_alter_table("profile_kernels") as batch:
        if op.get_context().dialect.name != "sqlite":  # where a table is made anew, without its old checks
            batch.drop_constraint(name, type_="check")
        batch.create_check_constraint(name, f"origin IN ({allowed})")
