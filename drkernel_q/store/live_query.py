"""Questions of whoever watches: what runs there are, how a training goes, what was written last; cheap to ask again."""

from drkernel_q.store.named import ANY_RUN, LIMIT, RUN, NamedQuery, Parameter
from drkernel_q.store.verdict import FACTS_OF_TURN, OF_TURN

_HONEST = "outcome = 'correct' AND integrity = 'clean'"
_P = Parameter(float, "speedup to reach", default=1.2)

LIVE_QUERIES = (
    NamedQuery(
        "latest-runs",
        "The latest runs, newest first, with the time of their latest evaluation.",
        """
        SELECT runs.name AS run, kind, created_at,
               (SELECT finished_at FROM evaluations
                WHERE evaluations.id = (SELECT max(id) FROM evaluations AS own WHERE own.run_id = runs.id)) AS last_at
        FROM runs
        WHERE CAST(:kind AS TEXT) IS NULL OR kind = :kind
        ORDER BY runs.id DESC
        LIMIT :limit
        """,
        {"kind": Parameter(str, "such as train, stts or eval; all of them otherwise"), "limit": LIMIT},
        times=("created_at", "last_at"),
    ),
    NamedQuery(
        "progress",
        "Mean reward and Fast@p of a training run by step, over the turns of the step; one without facts is not fast.",
        f"""
        SELECT step, count(*) AS turns, avg(reward) AS reward,
               CAST(count(CASE WHEN {_HONEST} THEN 1 END) AS DOUBLE PRECISION) / count(*) AS honest,
               CAST(count(CASE WHEN {_HONEST} AND speedup >= :p THEN 1 END) AS DOUBLE PRECISION) / count(*) AS fast_p
        FROM (
            SELECT lessons.step, lessons.reward, {FACTS_OF_TURN}
            FROM runs CROSS JOIN trajectories CROSS JOIN turns CROSS JOIN lessons {OF_TURN}
            WHERE runs.name = :run AND trajectories.run_id = runs.id AND turns.trajectory_id = trajectories.id
              AND lessons.turn_id = turns.id
        ) AS learned
        GROUP BY step
        ORDER BY step
        """,  # noqa: S608 - constants of this file
        {"run": RUN, "p": _P},
    ),
    NamedQuery(
        "validations",
        "Share of the trajectories of each validation of a training run that reach p at any turn, honestly.",
        f"""
        SELECT validation, count(*) AS trajectories, CAST(sum(fast) AS DOUBLE PRECISION) / count(*) AS fast_p
        FROM (
            SELECT validation, id, max(CASE WHEN {_HONEST} AND speedup >= :p THEN 1 ELSE 0 END) AS fast
            FROM (
                SELECT validations.name AS validation, trajectories.id, {FACTS_OF_TURN}
                FROM runs AS validations CROSS JOIN trajectories
                LEFT JOIN turns ON turns.trajectory_id = trajectories.id {OF_TURN}
                WHERE trajectories.run_id = validations.id AND
                    substr(validations.name, 1, length(CAST(:run AS TEXT)) + 12) = CAST(:run AS TEXT) || '-validation-'
            ) AS seen
            GROUP BY validation, id
        ) AS rolled
        GROUP BY validation
        ORDER BY validation
        """,  # noqa: S608 - constants of this file
        {"run": RUN, "p": _P},
    ),
    NamedQuery(
        "latest-trajectories",
        "The trajectories that were begun last, newest first: how long, how many honest turns, the fastest of these.",
        f"""
        SELECT run, kind, problem, trajectory, count(turn) AS turns, count(CASE WHEN {_HONEST} THEN 1 END) AS honest,
               count(CASE WHEN integrity = 'rejected' THEN 1 END) AS rejected,
               max(CASE WHEN {_HONEST} THEN speedup END) AS best
        FROM (
            SELECT latest.id, runs.name AS run, runs.kind, problems.name AS problem, latest.number AS trajectory,
                   turns.id AS turn, {FACTS_OF_TURN}
            FROM (
                SELECT id, run_id, problem_hash, number FROM trajectories
                WHERE CAST(:run AS TEXT) IS NULL OR run_id = (SELECT id FROM runs AS named WHERE named.name = :run)
                ORDER BY id DESC LIMIT :limit
            ) AS latest
            CROSS JOIN runs CROSS JOIN problems LEFT JOIN turns ON turns.trajectory_id = latest.id {OF_TURN}
            WHERE runs.id = latest.run_id AND problems.hash = latest.problem_hash
        ) AS seen
        GROUP BY id, run, kind, problem, trajectory
        ORDER BY id DESC
        """,  # noqa: S608 - constants of this file
        {"run": ANY_RUN, "limit": LIMIT},
    ),
)
