"""How long the judge of each evaluation took.

Why: what the devices of a run did over time is a question over all of its evaluations, and their documents are too
large to be read for it. Evaluations that are there already get no number: to write it would write every row again.

Revision: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("evaluations", sa.Column("judged_s", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("evaluations", "judged_s")
