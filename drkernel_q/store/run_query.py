"""Questions about runs: what there is, what became of their turns, which kernels are best, how two compare.

A turn is judged by its first facts, as everywhere.
"""

from drkernel_q.store.named import ANY_PROBLEM, LIMIT, RUN, NamedQuery, Parameter
from drkernel_q.store.verdict import FACTS_OF_TURN, OF_TURN

LAZY = Parameter(float, "profile ratio that is lazy below this", default=0.3)
_LIKE = Parameter(str, "pattern of names, with % for anything; all of them otherwise")
_MANY = Parameter(int, "rows at most", default=1000)

HONEST = "outcome = 'correct' AND integrity = 'clean'"
#: Counts of verdicts, for any grouping of evaluations.
COUNTS = f"""
    count(*) AS evaluations,
    count(CASE WHEN {HONEST} THEN 1 END) AS honest,
    count(CASE WHEN integrity = 'rejected' THEN 1 END) AS rejected,
    count(CASE WHEN {HONEST} AND profile_ratio < :lazy_below THEN 1 END) AS lazy
"""
RATES = """
    CAST(rejected AS DOUBLE PRECISION) / NULLIF(evaluations, 0) AS hack_rate,
    CAST(lazy AS DOUBLE PRECISION) / NULLIF(honest, 0) AS lazy_rate
"""
#: The best honest kernel of each problem of a run on each kind of device: the first of those with the highest
#: speedup_low. (Numbering them within their problem would sort all of them.)
BEST = f"""
    SELECT min(evaluations.id) AS id
    FROM (
        SELECT run_id, evaluations.problem_hash, evaluations.device_kind, max(speedup_low) AS peak
        FROM judged AS evaluations JOIN runs ON runs.id = evaluations.run_id
        WHERE runs.name = :run AND {HONEST}
        GROUP BY run_id, evaluations.problem_hash, evaluations.device_kind
    ) AS peaks JOIN judged AS evaluations
        ON evaluations.run_id = peaks.run_id AND evaluations.problem_hash = peaks.problem_hash
        AND evaluations.device_kind = peaks.device_kind
    WHERE {HONEST} AND speedup_low = peak
    GROUP BY evaluations.problem_hash, evaluations.device_kind
"""  # noqa: S608 - constants of this file

_BEST_OF_OTHER = BEST.replace(":run", ":other")

RUN_QUERIES = (
    NamedQuery(
        "runs",
        "Every run with what it holds, newest first.",
        f"""
        SELECT runs.name AS run, kind, created_at, COALESCE(rolled.trajectories, 0) AS trajectories,
               COALESCE(rolled.turns, 0) AS turns, COALESCE(counted.evaluations, 0) AS evaluations,
               COALESCE(counted.honest, 0) AS honest, COALESCE(counted.rejected, 0) AS rejected, counted.best
        FROM runs
        LEFT JOIN (
            SELECT run_id, count(DISTINCT trajectories.id) AS trajectories, count(turns.id) AS turns
            FROM trajectories LEFT JOIN turns ON turns.trajectory_id = trajectories.id GROUP BY run_id
        ) AS rolled ON rolled.run_id = runs.id
        LEFT JOIN (
            SELECT run_id, count(*) AS evaluations, count(CASE WHEN {HONEST} THEN 1 END) AS honest,
                   count(CASE WHEN integrity = 'rejected' THEN 1 END) AS rejected,
                   max(CASE WHEN {HONEST} THEN speedup END) AS best
            FROM judged AS evaluations GROUP BY run_id
        ) AS counted ON counted.run_id = runs.id
        WHERE (CAST(:kind AS TEXT) IS NULL OR kind = :kind) AND (CAST(:like AS TEXT) IS NULL OR runs.name LIKE :like)
        ORDER BY created_at DESC, runs.id DESC
        LIMIT :limit
        """,  # noqa: S608 - constants of this file
        {
            "kind": Parameter(str, "such as train, stts or eval; all of them otherwise"),
            "like": _LIKE,
            "limit": LIMIT,
        },
        times=("created_at",),
    ),
    NamedQuery(
        "trajectories",
        "The trajectories of a run: how long, how many honest turns, and the fastest of these.",
        f"""
        SELECT problem, trajectory, count(turn) AS turns, count(CASE WHEN {HONEST} THEN 1 END) AS honest,
               count(CASE WHEN integrity = 'rejected' THEN 1 END) AS rejected,
               max(CASE WHEN {HONEST} THEN speedup END) AS best
        FROM (
            SELECT listed.id, listed.problem, listed.number AS trajectory, turns.id AS turn, {FACTS_OF_TURN}
            FROM (
                SELECT trajectories.id, problems.name AS problem, trajectories.number
                FROM runs CROSS JOIN problems CROSS JOIN trajectories
                WHERE runs.name = :run AND trajectories.run_id = runs.id AND trajectories.problem_hash = problems.hash
                  AND (CAST(:problem AS TEXT) IS NULL OR problems.name = :problem)
                ORDER BY problems.name, problems.hash, trajectories.number LIMIT :limit
            ) AS listed LEFT JOIN turns ON turns.trajectory_id = listed.id {OF_TURN}
        ) AS seen
        GROUP BY id, problem, trajectory
        ORDER BY problem, trajectory
        """,  # noqa: S608 - constants of this file
        {"run": RUN, "problem": ANY_PROBLEM, "limit": _MANY},
    ),
    NamedQuery(
        "turns",
        "The turns of a run, one a row, by problem, trajectory and turn.",
        f"""
        SELECT problem, trajectory, turn, outcome, integrity, speedup_low, speedup, speedup_high, profile_ratio,
               finish_reason, policy_version, kernel_hash, error
        FROM (
            SELECT problems.name AS problem, problems.hash AS problem_hash, trajectories.number AS trajectory,
                   turns.number AS turn, {FACTS_OF_TURN}, finish_reason, policy_version, turns.kernel_hash,
                   evaluations.error
            FROM runs CROSS JOIN problems CROSS JOIN trajectories CROSS JOIN turns {OF_TURN}
            WHERE runs.name = :run AND trajectories.run_id = runs.id AND trajectories.problem_hash = problems.hash
              AND turns.trajectory_id = trajectories.id
        ) AS seen
        WHERE (CAST(:problem AS TEXT) IS NULL OR problem = :problem)
          AND (CAST(:trajectory AS INTEGER) IS NULL OR trajectory = :trajectory)
          AND (CAST(:turn AS INTEGER) IS NULL OR turn = :turn)
          AND (CAST(:outcome AS TEXT) IS NULL OR outcome = :outcome)
          AND (CAST(:integrity AS TEXT) IS NULL OR integrity = :integrity)
          AND (CAST(:faster_than AS DOUBLE PRECISION) IS NULL OR speedup >= :faster_than)
          AND (CAST(:lazier_than AS DOUBLE PRECISION) IS NULL OR profile_ratio < :lazier_than)
        ORDER BY problem, problem_hash, trajectory, turn
        LIMIT :limit
        """,  # noqa: S608 - constants of this file
        {
            "run": RUN,
            "problem": ANY_PROBLEM,
            "trajectory": Parameter(int, "number of a trajectory; all of them otherwise"),
            "turn": Parameter(int, "number of a turn; all of them otherwise"),
            "outcome": Parameter(str, "outcome, such as correct; any otherwise"),
            "integrity": Parameter(str, "integrity, such as rejected; any otherwise"),
            "faster_than": Parameter(float, "speedup at least this; any otherwise"),
            "lazier_than": Parameter(float, "profile ratio below this; any otherwise"),
            "limit": _MANY,
        },
    ),
    NamedQuery(
        "best-of-run",
        "The best honest kernel of each problem of a run on each kind of device, by speedup_low, with its source.",
        f"""
        SELECT problems.name AS problem, device_kind, speedup_low, speedup, speedup_high, profile_ratio, kernel_hash,
               kernels.source
        FROM ({BEST}) AS best CROSS JOIN judged AS evaluations CROSS JOIN problems CROSS JOIN kernels
        WHERE evaluations.id = best.id AND problems.hash = evaluations.problem_hash
          AND kernels.hash = evaluations.kernel_hash
          AND (CAST(:problem AS TEXT) IS NULL OR problems.name = :problem)
        ORDER BY problem, device_kind
        """,  # noqa: S608 - constants of this file
        {"run": RUN, "problem": ANY_PROBLEM},
    ),
    NamedQuery(
        "best-turns",
        "The fastest of these, by speedup_low: where in the run they were written, with the kernel that the trajectory "
        "had before.",
        f"""
        SELECT problems.name AS problem, device_kind, speedup_low, speedup, speedup_high, profile_ratio,
               trajectories.number AS trajectory, turns.number AS turn, request_id, best.kernel_hash,
               (
                   SELECT kernels.source FROM turns AS earlier JOIN kernels ON kernels.hash = earlier.kernel_hash
                   WHERE earlier.trajectory_id = turns.trajectory_id AND earlier.number < turns.number
                   ORDER BY earlier.number DESC LIMIT 1
               ) AS before, kernels.source
        FROM (
            SELECT evaluations.* FROM ({BEST}) AS ids CROSS JOIN judged AS evaluations WHERE evaluations.id = ids.id
            ORDER BY speedup_low DESC, evaluations.id LIMIT :limit
        ) AS best
        JOIN problems ON problems.hash = best.problem_hash JOIN kernels ON kernels.hash = best.kernel_hash
        LEFT JOIN turns ON turns.id = best.turn_id LEFT JOIN trajectories ON trajectories.id = turns.trajectory_id
        ORDER BY speedup_low DESC, best.id
        """,  # noqa: S608 - constants of this file
        {"run": RUN, "limit": LIMIT},
    ),
    NamedQuery(
        "compare",
        "The best honest kernel of each problem in one run and in another, by speedup_low; `faster` and `slower` say "
        "of the other where the intervals do not meet.",
        f"""
        WITH best AS (
            SELECT 1 AS side, evaluations.* FROM ({BEST}) AS ids CROSS JOIN judged AS evaluations
            WHERE evaluations.id = ids.id
            UNION ALL
            SELECT 2 AS side, evaluations.* FROM ({_BEST_OF_OTHER}) AS ids CROSS JOIN judged AS evaluations
            WHERE evaluations.id = ids.id
        ),
        met AS (
            SELECT DISTINCT problem_hash, device_kind
            FROM runs CROSS JOIN evaluations WHERE runs.name IN (:run, :other) AND evaluations.run_id = runs.id
        )
        SELECT problems.name AS problem, met.device_kind,
               one.speedup_low AS one_low, one.speedup AS one, one.speedup_high AS one_high,
               two.speedup_low AS other_low, two.speedup AS other, two.speedup_high AS other_high,
               CASE WHEN two.speedup_low > one.speedup_high OR (one.speedup IS NULL AND two.speedup IS NOT NULL)
                        THEN 'faster'
                    WHEN one.speedup_low > two.speedup_high OR (two.speedup IS NULL AND one.speedup IS NOT NULL)
                        THEN 'slower'
                    WHEN one.speedup IS NULL THEN 'neither' ELSE 'same' END AS change
        FROM met JOIN problems ON problems.hash = met.problem_hash
        LEFT JOIN best AS one ON one.side = 1 AND one.problem_hash = met.problem_hash
            AND one.device_kind = met.device_kind
        LEFT JOIN best AS two ON two.side = 2 AND two.problem_hash = met.problem_hash
            AND two.device_kind = met.device_kind
        ORDER BY problem, met.device_kind
        """,  # noqa: S608 - constants of this file
        {"run": RUN, "other": Parameter(str, "name of the run to compare with", required=True)},
    ),
    NamedQuery(
        "lessons",
        "What each step of a training run made of its turns: how many, their mean reward, and what was rejected.",
        """
        SELECT step, count(*) AS turns, count(reward) AS rewarded, avg(reward) AS reward,
               count(CASE WHEN mismatch = 'kept' THEN 1 END) AS matched,
               count(keep_probability) AS drawn, count(CASE WHEN lazy THEN 1 END) AS lazy,
               count(CASE WHEN advantage IS NOT NULL AND mismatch = 'kept' AND NOT lazy THEN 1 END) AS learned
        FROM runs CROSS JOIN trajectories CROSS JOIN turns CROSS JOIN lessons
        WHERE runs.name = :run AND trajectories.run_id = runs.id AND turns.trajectory_id = trajectories.id
          AND lessons.turn_id = turns.id
        GROUP BY step
        ORDER BY step
        """,
        {"run": RUN},
    ),
)
