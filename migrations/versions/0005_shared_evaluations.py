"""Evaluations that answer several requests.

Why: who asks for what was evaluated before is answered without a worker, and its request still has a row of its own.

Revision: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("evaluations", sa.Column("measured_for", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("evaluations", "measured_for")
