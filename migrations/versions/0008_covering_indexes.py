"""Questions about whole runs are answered from indexes alone.

Why: rows of evaluations and turns are kilobytes long (documents, tokens), so that to count those of a run of a million
turns was to read gigabytes. The index on the turn of an evaluation becomes wider instead of another one.

Revision: 0008
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_RUN = "ix_evaluations_of_run"
_TURN = "ix_evaluations_of_turn"
#: With the row's own number at the end, which is in every index of SQLite but in none of PostgreSQL.
_COURSE = ["submitted_at", "finished_at", "judged_s", "worker"]
_VERDICT = ["outcome", "integrity", "speedup_low", "speedup", "speedup_high", "profile_ratio"]


def upgrade() -> None:
    columns = ["run_id", "problem_hash", "device_kind", *_VERDICT]
    op.create_index(_RUN, "evaluations", [*columns, "turn_id", *_COURSE, "id"])
    op.create_index(_TURN, "evaluations", ["turn_id", "id", *_VERDICT])
    op.drop_index("ix_evaluations_turn_id", "evaluations")
    op.create_index("ix_turns_of_trajectory", "turns", ["trajectory_id", "number", "policy_version", "id"])
    op.create_index("ix_problems_name_hash", "problems", ["name", "hash"])


def downgrade() -> None:
    op.drop_index("ix_problems_name_hash", "problems")
    op.drop_index("ix_turns_of_trajectory", "turns")
    op.create_index("ix_evaluations_turn_id", "evaluations", ["turn_id"])
    op.drop_index(_TURN, "evaluations")
    op.drop_index(_RUN, "evaluations")
