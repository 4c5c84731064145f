"""Questions about how a run went: its rates over time, steps and problems, what was seen, and examples of it."""

from drkernel_q.store.named import LIMIT, RUN, NamedQuery, Parameter
from drkernel_q.store.run_query import COUNTS, HONEST, LAZY, RATES

#: Honest kernels that were profiled, apart from whatever sorts them: otherwise SQLite takes another index and reads all
#: rows.
_PROFILED = f"""
    WITH profiled AS MATERIALIZED (
        SELECT evaluations.id, problem_hash, profile_ratio
        FROM judged AS evaluations JOIN runs ON runs.id = evaluations.run_id
        WHERE runs.name = :run AND {HONEST} AND profile_ratio IS NOT NULL
    )
"""  # noqa: S608 - constants of this package

ANALYSIS_QUERIES = (
    NamedQuery(
        "rates-by-problem",
        "Hack rate and lazy rate of a run, problem by problem, those with most hacks first.",
        f"""
        SELECT problem, evaluations, honest, rejected, lazy, {RATES}
        FROM (
            SELECT problems.name AS problem, {COUNTS}
            FROM judged AS evaluations JOIN runs ON runs.id = evaluations.run_id
            JOIN problems ON problems.hash = evaluations.problem_hash
            WHERE runs.name = :run GROUP BY problems.name
        ) AS counted
        ORDER BY rejected DESC, lazy DESC, problem
        """,  # noqa: S608 - constants of this package
        {"run": RUN, "lazy_below": LAZY},
    ),
    NamedQuery(
        "rates-by-step",
        "Hack rate and lazy rate of a training run over the steps of the weights that wrote the turns.",
        f"""
        SELECT step, evaluations, honest, rejected, lazy, {RATES}
        FROM (
            SELECT turns.policy_version AS step, {COUNTS}
            FROM runs CROSS JOIN trajectories CROSS JOIN turns CROSS JOIN judged AS evaluations
            WHERE runs.name = :run AND trajectories.run_id = runs.id AND turns.trajectory_id = trajectories.id
              AND evaluations.turn_id = turns.id
            GROUP BY turns.policy_version
        ) AS counted
        ORDER BY step
        """,  # noqa: S608 - constants of this package
        {"run": RUN, "lazy_below": LAZY},
    ),
    NamedQuery(
        "over-time",
        "A run in equal times, `bins` at most: what was judged and how it ended, how many judges were at work, and how "
        "many requests had no answer yet.",
        f"""
        WITH facts AS MATERIALIZED (
            -- Facts that were there before they were asked for are an answer at once.
            SELECT begun, CASE WHEN finished < begun THEN begun ELSE finished END AS ended, judged_s, worker,
                   CASE WHEN {HONEST} THEN 1 ELSE 0 END AS honest,
                   CASE WHEN integrity = 'rejected' THEN 1 ELSE 0 END AS rejected,
                   CASE WHEN {HONEST} AND profile_ratio < :lazy_below THEN 1 ELSE 0 END AS lazy
            FROM (
                SELECT CAST(1000 * COALESCE(epoch(submitted_at), epoch(finished_at)) AS BIGINT) AS begun,
                       CAST(1000 * epoch(finished_at) AS BIGINT) AS finished,
                       outcome, integrity, profile_ratio, judged_s, worker
                FROM judged AS evaluations JOIN runs ON runs.id = evaluations.run_id WHERE runs.name = :run
            ) AS timed
        ),
        frame AS MATERIALIZED (
            SELECT first, workers,
                   CASE WHEN span / :bins > least_width THEN span / :bins + 1 ELSE least_width END AS width
            FROM (
                SELECT min(begun) AS first, max(ended) - min(begun) AS span, count(DISTINCT worker) AS workers,
                       CAST(COALESCE(max(judged_s), 0) * 2000 AS BIGINT) + 1 AS least_width
                FROM facts
            ) AS measured
        ),
        counted AS (
            SELECT (ended - first) / width AS bin, count(*) AS evaluations, 0 AS submitted, sum(honest) AS honest,
                   sum(rejected) AS rejected, sum(lazy) AS lazy, COALESCE(sum(judged_s), 0) AS judged_s
            FROM facts CROSS JOIN frame GROUP BY bin
            UNION ALL
            SELECT (begun - first) / width AS bin, 0, count(*), 0, 0, 0, 0 FROM facts CROSS JOIN frame GROUP BY bin
        ),
        summed AS (
            SELECT bin, CAST(sum(evaluations) AS INTEGER) AS evaluations, CAST(sum(submitted) AS INTEGER) AS submitted,
                   CAST(sum(honest) AS INTEGER) AS honest, CAST(sum(rejected) AS INTEGER) AS rejected,
                   CAST(sum(lazy) AS INTEGER) AS lazy, sum(judged_s) AS judged_s
            FROM counted GROUP BY bin
        )
        SELECT bin * width / 1000.0 AS second, evaluations, honest, rejected, lazy, {RATES},
               judged_s * 1000.0 / width AS judging,
               CAST(sum(submitted - evaluations) OVER (ORDER BY bin) AS INTEGER) AS unanswered, workers
        FROM summed CROSS JOIN frame
        ORDER BY bin
        """,  # noqa: S608 - constants of this package
        {"run": RUN, "bins": Parameter(int, "how many times at most", default=100), "lazy_below": LAZY},
    ),
    NamedQuery(
        "lazy-and-fused",
        "Device time by kernel of the honest kernels of a run with the lowest and with the highest profile ratio.",
        f"""
        {_PROFILED}
        SELECT problems.name AS problem, ends.profile_ratio, profile_kernels.origin, profile_kernels.device_us,
               profile_kernels.name
        FROM (
            SELECT * FROM (SELECT * FROM profiled ORDER BY profile_ratio, id LIMIT 1) AS lazy
            UNION
            SELECT * FROM (SELECT * FROM profiled ORDER BY profile_ratio DESC, id LIMIT 1) AS fused
        ) AS ends
        JOIN problems ON problems.hash = ends.problem_hash
        JOIN profile_kernels ON profile_kernels.evaluation_id = ends.id
        ORDER BY ends.profile_ratio, device_us DESC
        """,  # noqa: S608 - constants of this package
        {"run": RUN},
    ),
    NamedQuery(
        "lazy-kernels",
        "The honest and correct kernels of a run that leave most of the work to others, laziest first.",
        f"""
        {_PROFILED}
        SELECT problems.name AS problem, lazy.profile_ratio, evaluations.speedup, evaluations.request_id, kernels.source
        FROM (
            SELECT id, profile_ratio FROM profiled WHERE profile_ratio < :lazy_below
            ORDER BY profile_ratio, id LIMIT :limit
        ) AS lazy CROSS JOIN judged AS evaluations CROSS JOIN problems CROSS JOIN kernels
        WHERE evaluations.id = lazy.id AND problems.hash = evaluations.problem_hash
          AND kernels.hash = evaluations.kernel_hash
        ORDER BY lazy.profile_ratio, lazy.id
        """,  # noqa: S608 - constants of this package
        {"run": RUN, "lazy_below": LAZY, "limit": LIMIT},
    ),
    NamedQuery(
        "evidence",
        "How many evaluations of a run each code of evidence was raised in, and the request of one of them.",
        """
        SELECT evidence.code, evidence.weight, count(DISTINCT evidence.evaluation_id) AS evaluations,
               count(DISTINCT evaluations.problem_hash) AS problems, max(evaluations.request_id) AS example
        FROM evidence JOIN evaluations ON evaluations.id = evidence.evaluation_id
        JOIN runs ON runs.id = evaluations.run_id
        WHERE runs.name = :run
        GROUP BY evidence.code, evidence.weight
        ORDER BY evaluations DESC, evidence.code
        """,
        {"run": RUN},
    ),
    NamedQuery(
        "evidence-by-step",
        "In how many evaluations of a training run each code of evidence was raised, over the steps of the weights "
        "that wrote the turns.",
        """
        SELECT turns.policy_version AS step, evidence.code, count(DISTINCT evidence.evaluation_id) AS evaluations
        FROM evidence JOIN evaluations ON evaluations.id = evidence.evaluation_id
        JOIN turns ON turns.id = evaluations.turn_id
        JOIN runs ON runs.id = evaluations.run_id
        WHERE runs.name = :run GROUP BY turns.policy_version, evidence.code
        ORDER BY step, evidence.code
        """,
        {"run": RUN},
    ),
    NamedQuery(
        "evidence-examples",
        "Of each code of evidence that was raised in a run the latest evaluation, with the kernel.",
        """
        SELECT evidence.code, evidence.weight, problems.name AS problem, evaluations.outcome, evaluations.speedup,
               evaluations.request_id, evidence.detail, kernels.source
        FROM (
            SELECT code, max(evidence.id) AS id, count(*) AS times
            FROM evidence JOIN evaluations ON evaluations.id = evidence.evaluation_id
            JOIN runs ON runs.id = evaluations.run_id
            WHERE runs.name = :run GROUP BY code
        ) AS latest
        JOIN evidence ON evidence.id = latest.id
        JOIN evaluations ON evaluations.id = evidence.evaluation_id
        JOIN problems ON problems.hash = evaluations.problem_hash
        JOIN kernels ON kernels.hash = evaluations.kernel_hash
        ORDER BY latest.times DESC, evidence.code
        """,
        {"run": RUN},
    ),
)
