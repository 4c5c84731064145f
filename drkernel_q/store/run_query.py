"""Questions about runs: what there is, what became of their turns, which kernels are best, how two compare.

A turn is judged by its first facts, as everywhere.
"""

from drkernel_q.store.named import ANY_PROBLEM, LIMIT, RUN, NamedQuery, Parameter

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
#: The first facts of each turn.
_OF_TURN = """
    LEFT JOIN judged AS evaluations
        ON evaluations.id = (SELECT min(id) FROM evaluations AS own WHERE own.turn_id = turns.id)
"""
_ROLLOUTS = """
    trajectories JOIN runs ON runs.id = trajectories.run_id
    JOIN problems ON problems.hash = trajectories.problem_hash
    JOIN turns ON turns.trajectory_id = trajectories.id
"""

#: The honest kernels of a run; those of place 1 are the best of a problem on a kind of device.
BEST = f"""
    SELECT evaluations.id, evaluations.problem_hash, evaluations.device_kind, kernel_hash, turn_id, request_id,
           speedup_low, speedup, speedup_high, profile_ratio,
           row_number() OVER (
               PARTITION BY evaluations.problem_hash, evaluations.device_kind
               ORDER BY speedup_low DESC, evaluations.id
           ) AS place
    FROM judged AS evaluations JOIN runs ON runs.id = evaluations.run_id
    WHERE runs.name = :run AND {HONEST} AND speedup_low IS NOT NULL
"""  # noqa: S608 - constants of this file

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
        SELECT problems.name AS problem, trajectories.number AS trajectory, count(turns.id) AS turns,
               count(CASE WHEN {HONEST} THEN 1 END) AS honest,
               count(CASE WHEN integrity = 'rejected' THEN 1 END) AS rejected,
               max(CASE WHEN {HONEST} THEN speedup END) AS best
        FROM {_ROLLOUTS} {_OF_TURN}
        WHERE runs.name = :run AND (CAST(:problem AS TEXT) IS NULL OR problems.name = :problem)
        GROUP BY trajectories.id, problems.name, trajectories.number
        ORDER BY problem, trajectory
        LIMIT :limit
        """,  # noqa: S608 - constants of this file
        {"run": RUN, "problem": ANY_PROBLEM, "limit": _MANY},
    ),
    NamedQuery(
        "turns",
        "The turns of a run, one a row, by problem, trajectory and turn.",
        f"""
        SELECT problems.name AS problem, trajectories.number AS trajectory, turns.number AS turn, outcome, integrity,
               speedup_low, speedup, speedup_high, profile_ratio, finish_reason, policy_version,
               turns.kernel_hash, error
        FROM {_ROLLOUTS} {_OF_TURN}
        WHERE runs.name = :run
          AND (CAST(:problem AS TEXT) IS NULL OR problems.name = :problem)
          AND (CAST(:trajectory AS INTEGER) IS NULL OR trajectories.number = :trajectory)
          AND (CAST(:turn AS INTEGER) IS NULL OR turns.number = :turn)
          AND (CAST(:outcome AS TEXT) IS NULL OR outcome = :outcome)
          AND (CAST(:integrity AS TEXT) IS NULL OR integrity = :integrity)
          AND (CAST(:faster_than AS DOUBLE PRECISION) IS NULL OR speedup >= :faster_than)
          AND (CAST(:lazier_than AS DOUBLE PRECISION) IS NULL OR profile_ratio < :lazier_than)
        ORDER BY problem, trajectory, turn
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
        FROM ({BEST}) AS best
        JOIN problems ON problems.hash = best.problem_hash JOIN kernels ON kernels.hash = best.kernel_hash
        WHERE place = 1 AND (CAST(:problem AS TEXT) IS NULL OR problems.name = :problem)
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
        FROM (SELECT * FROM ({BEST}) AS ranked WHERE place = 1 ORDER BY speedup_low DESC, id LIMIT :limit) AS best
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
            SELECT * FROM (
                SELECT runs.name AS run, evaluations.problem_hash, evaluations.device_kind,
                       speedup_low, speedup, speedup_high,
                       row_number() OVER (
                           PARTITION BY runs.id, evaluations.problem_hash, evaluations.device_kind
                           ORDER BY speedup_low DESC, evaluations.id
                       ) AS place
                FROM judged AS evaluations JOIN runs ON runs.id = evaluations.run_id
                WHERE runs.name IN (:run, :other) AND {HONEST} AND speedup_low IS NOT NULL
            ) AS ranked WHERE place = 1
        ),
        met AS (
            SELECT DISTINCT problem_hash, device_kind
            FROM evaluations JOIN runs ON runs.id = evaluations.run_id WHERE runs.name IN (:run, :other)
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
        LEFT JOIN best AS one ON one.run = :run AND one.problem_hash = met.problem_hash
            AND one.device_kind = met.device_kind
        LEFT JOIN best AS two ON two.run = :other AND two.problem_hash = met.problem_hash
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
        FROM lessons JOIN turns ON turns.id = lessons.turn_id
        JOIN trajectories ON trajectories.id = turns.trajectory_id
        JOIN runs ON runs.id = trajectories.run_id
        WHERE runs.name = :run GROUP BY step
        ORDER BY step
        """,
        {"run": RUN},
    ),
)
