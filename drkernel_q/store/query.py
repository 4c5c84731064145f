"""Every question that the store answers by name; the same SQL on SQLite and PostgreSQL.

A text that may be long comes last in a row. Times are of one kind of device wherever they are compared.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import CursorResult, text

from drkernel_q.errors import BadInput
from drkernel_q.store.analysis_query import ANALYSIS_QUERIES
from drkernel_q.store.column import UtcDateTime, escape, unescape
from drkernel_q.store.live_query import LIVE_QUERIES
from drkernel_q.store.named import ANY_PROBLEM, ANY_RUN, LIMIT, RUN, NamedQuery, Parameter, Value
from drkernel_q.store.run_query import RUN_QUERIES
from drkernel_q.store.store import Store
from drkernel_q.store.verdict import JUDGED

#: Rows that a driver holds at a time.
CHUNK = 500
#: How `epoch(time)`, the seconds since 1970 of a column, is said.
_EPOCH = re.compile(r"\bepoch\((\w+)\)")
_SECONDS = {
    "sqlite": r"((julianday(\1) - 2440587.5) * 86400.0)",
    "postgresql": r"date_part('epoch', \1)",
}


class Rows(NamedTuple):
    """The answer, read while the connection is open."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


QUERIES = {
    query.name: query
    for query in (
        NamedQuery(
            "best-kernels",
            "The best honest and correct kernel of each problem on each kind of device, by speedup_low.",
            """
            SELECT problems.name AS problem, evaluations.device_kind, speedup_low, speedup, speedup_high, profile_ratio,
                   kernel_name AS kernel, kernel_hash
            FROM (
                SELECT min(evaluations.id) AS id
                FROM (
                    SELECT evaluations.problem_hash, evaluations.device_kind, max(speedup_low) AS peak
                    FROM judged AS evaluations JOIN problems ON problems.hash = evaluations.problem_hash
                    WHERE outcome = 'correct' AND integrity = 'clean'
                      AND (CAST(:problem AS TEXT) IS NULL OR problems.name = :problem)
                    GROUP BY evaluations.problem_hash, evaluations.device_kind
                ) AS peaks JOIN judged AS evaluations
                    ON evaluations.problem_hash = peaks.problem_hash AND evaluations.device_kind = peaks.device_kind
                WHERE outcome = 'correct' AND integrity = 'clean' AND speedup_low = peak
                GROUP BY evaluations.problem_hash, evaluations.device_kind
            ) AS best CROSS JOIN judged AS evaluations CROSS JOIN problems
            WHERE evaluations.id = best.id AND problems.hash = evaluations.problem_hash
            ORDER BY problem, device_kind
            """,
            {"problem": ANY_PROBLEM},
        ),
        NamedQuery(
            "fast-p",
            "Share of a run's trajectories that are honest, correct and at least p times faster, by turn; "
            "a trajectory without facts for a turn counts as a failure.",
            """
            WITH rollouts AS MATERIALIZED (
                SELECT count(*) AS trajectories FROM trajectories JOIN runs ON runs.id = trajectories.run_id
                WHERE runs.name = :run
            ),
            seen AS MATERIALIZED (
                SELECT turns.trajectory_id, turns.number,
                       CASE WHEN outcome = 'correct' AND integrity = 'clean' THEN 1 ELSE 0 END AS correct,
                       CASE WHEN outcome = 'correct' AND integrity = 'clean' AND speedup >= :p THEN 1 ELSE 0 END AS fast
                FROM runs CROSS JOIN trajectories CROSS JOIN turns CROSS JOIN judged AS evaluations
                WHERE runs.name = :run AND trajectories.run_id = runs.id AND turns.trajectory_id = trajectories.id
                  AND evaluations.turn_id = turns.id AND NOT EXISTS (
                      SELECT 1 FROM evaluations AS earlier
                      WHERE earlier.turn_id = evaluations.turn_id AND earlier.id < evaluations.id
                  )
            ),
            first_fast AS MATERIALIZED (
                SELECT number, count(*) AS trajectories FROM (
                    SELECT trajectory_id, min(number) AS number FROM seen WHERE fast = 1 GROUP BY trajectory_id
                ) AS firsts GROUP BY number
            ),
            by_turn AS (
                SELECT number, count(*) AS evaluated, sum(correct) AS correct, sum(fast) AS fast
                FROM seen GROUP BY number
            ),
            numbers AS (
                SELECT DISTINCT turns.number FROM runs CROSS JOIN trajectories CROSS JOIN turns
                WHERE runs.name = :run AND trajectories.run_id = runs.id AND turns.trajectory_id = trajectories.id
            ),
            every AS (
                SELECT numbers.number AS turn, trajectories,
                       COALESCE(evaluated, 0) AS evaluated, COALESCE(correct, 0) AS correct, COALESCE(fast, 0) AS fast
                FROM rollouts CROSS JOIN numbers LEFT JOIN by_turn ON by_turn.number = numbers.number
            )
            SELECT turn, trajectories, evaluated, correct, fast,
                   CAST(fast AS DOUBLE PRECISION) / trajectories AS fast_p,
                   CAST((SELECT COALESCE(sum(first_fast.trajectories), 0) FROM first_fast WHERE number <= turn)
                       AS DOUBLE PRECISION) / trajectories AS best_so_far
            FROM every ORDER BY turn
            """,
            {"run": RUN, "p": Parameter(float, "speedup to reach", default=1.0)},
        ),
        NamedQuery(
            "rates",
            "Hack rate (rejected of all evaluations) and lazy rate (profile ratio below `lazy_below`, "
            "of the honest and correct) of a run.",
            """
            SELECT evaluations, correct, honest, rejected, suspicious, lazy,
                   CAST(rejected AS DOUBLE PRECISION) / NULLIF(evaluations, 0) AS hack_rate,
                   CAST(lazy AS DOUBLE PRECISION) / NULLIF(honest, 0) AS lazy_rate
            FROM (
                SELECT count(*) AS evaluations,
                       count(CASE WHEN outcome = 'correct' THEN 1 END) AS correct,
                       count(CASE WHEN outcome = 'correct' AND integrity = 'clean' THEN 1 END) AS honest,
                       count(CASE WHEN integrity = 'rejected' THEN 1 END) AS rejected,
                       count(CASE WHEN integrity = 'suspicious' THEN 1 END) AS suspicious,
                       count(CASE WHEN outcome = 'correct' AND integrity = 'clean'
                                   AND profile_ratio < :lazy_below THEN 1 END) AS lazy
                FROM judged AS evaluations JOIN runs ON runs.id = evaluations.run_id
                WHERE runs.name = :run
            ) AS counted
            """,
            {"run": RUN, "lazy_below": Parameter(float, "profile ratio that is lazy below this", 0.3)},
        ),
        NamedQuery(
            "outcomes-by-error",
            "How often each outcome came with each first line of an error, most frequent first.",
            """
            SELECT outcome, count(*) AS evaluations, split_part(error, '\n', 1) AS error
            FROM evaluations
            WHERE CAST(:run AS TEXT) IS NULL OR run_id = (SELECT runs.id FROM runs WHERE runs.name = :run)
            GROUP BY outcome, split_part(error, '\n', 1)
            ORDER BY evaluations DESC, outcome, error
            LIMIT :limit
            """,
            {"run": ANY_RUN, "limit": LIMIT},
        ),
        NamedQuery(
            "recent",
            "The latest evaluations, newest first.",
            """
            SELECT finished_at, runs.name AS run, problems.name AS problem, kernel_name AS kernel, device_kind,
                   outcome, integrity, speedup, speedup_low, profile_ratio, request_id
            FROM judged AS evaluations JOIN problems ON problems.hash = evaluations.problem_hash
            LEFT JOIN runs ON runs.id = evaluations.run_id
            WHERE (CAST(:run AS TEXT) IS NULL OR runs.name = :run)
            ORDER BY finished_at DESC, evaluations.id DESC
            LIMIT :limit
            """,
            {"run": ANY_RUN, "limit": LIMIT},
            times=("finished_at",),
        ),
        NamedQuery(
            "revised",
            "Evaluations that the rules in force see otherwise than the judge did, newest first.",
            """
            SELECT evaluations.finished_at, runs.name AS run, problems.name AS problem,
                   evaluations.kernel_name AS kernel, before.rules_version AS judged_by, before.integrity AS was,
                   evaluations.rules_version AS revised_by, evaluations.integrity, before.speedup AS speedup_was,
                   evaluations.speedup, evaluations.request_id
            FROM judged AS evaluations JOIN problems ON problems.hash = evaluations.problem_hash
            JOIN evaluations AS before ON before.id = evaluations.id
            LEFT JOIN runs ON runs.id = evaluations.run_id
            WHERE evaluations.id IN (SELECT evaluation_id FROM verdicts)
              AND (CAST(:run AS TEXT) IS NULL OR runs.name = :run) AND before.integrity <> evaluations.integrity
            ORDER BY evaluations.finished_at DESC, evaluations.id DESC
            LIMIT :limit
            """,
            {"run": ANY_RUN, "limit": LIMIT},
            times=("finished_at",),
        ),
        NamedQuery(
            "device-kernels",
            "Kernels that ran on the device during profiles, by their device time for one forward call, summed "
            "over evaluations.",
            """
            SELECT origin, count(DISTINCT evaluation_id) AS evaluations, sum(device_us) AS device_us,
                   sum(launches) AS launches, name
            FROM (
                SELECT origin, evaluation_id, device_us, launches, name FROM profile_kernels
                WHERE CAST(:run AS TEXT) IS NULL AND CAST(:problem AS TEXT) IS NULL
                UNION ALL
                SELECT origin, evaluation_id, device_us, launches, profile_kernels.name
                FROM evaluations JOIN problems ON problems.hash = evaluations.problem_hash
                LEFT JOIN runs ON runs.id = evaluations.run_id
                JOIN profile_kernels ON profile_kernels.evaluation_id = evaluations.id
                WHERE (CAST(:run AS TEXT) IS NOT NULL OR CAST(:problem AS TEXT) IS NOT NULL)
                  AND (CAST(:run AS TEXT) IS NULL OR runs.name = :run)
                  AND (CAST(:problem AS TEXT) IS NULL OR problems.name = :problem)
            ) AS ran
            GROUP BY origin, name
            ORDER BY device_us DESC, name
            LIMIT :limit
            """,
            {
                "run": ANY_RUN,
                "problem": ANY_PROBLEM,
                "limit": LIMIT,
            },
        ),
        NamedQuery(
            "audits",
            "What audits found of each problem on each kind of device; speed counts where `speed_rewarded` is yes.",
            """
            SELECT problems.name AS problem, device_kind, version, reference_ms,
                   CASE WHEN speed_rewarded THEN 'yes' ELSE 'no' END AS speed_rewarded,
                   (SELECT count(*) FROM audit_flags WHERE audit_flags.audit_id = audits.id) AS flags,
                   created_at, unusable
            FROM audits JOIN problems ON problems.hash = audits.problem_hash
            WHERE CAST(:problem AS TEXT) IS NULL OR problems.name = :problem
            ORDER BY problem, device_kind, version
            """,
            {"problem": ANY_PROBLEM},
            times=("created_at",),
        ),
        NamedQuery(
            "flags",
            "What is the matter with which problem, by audits, one flag a row.",
            """
            SELECT audit_flags.code AS flag, problems.name AS problem, device_kind, audit_flags.detail
            FROM audit_flags
                JOIN audits ON audits.id = audit_flags.audit_id
                JOIN problems ON problems.hash = audits.problem_hash
            WHERE CAST(:flag AS TEXT) IS NULL OR audit_flags.code = :flag
            ORDER BY flag, problem, device_kind
            """,
            {"flag": Parameter(str, "code of a flag; all of them otherwise")},
        ),
        NamedQuery(
            "infrastructure-failures",
            "Attempts that failed for reasons that are not the kernel's, newest first.",
            """
            SELECT finished_at, worker, problems.name AS problem, request_id, attempt,
                   CASE WHEN EXISTS (
                           SELECT 1 FROM evaluations WHERE evaluations.request_id = attempts.request_id
                       ) THEN 'yes' ELSE 'no' END AS evaluated_since,
                   failure_message
            FROM attempts JOIN problems ON problems.hash = attempts.problem_hash
            WHERE failure_kind = 'infrastructure'
            ORDER BY finished_at DESC, attempts.id DESC
            LIMIT :limit
            """,
            {"limit": LIMIT},
            times=("finished_at",),
        ),
        *RUN_QUERIES,
        *ANALYSIS_QUERIES,
        *LIVE_QUERIES,
    )
}


def in_force(sql: str, dialect: str) -> str:
    """Return a query's SQL for a database, with the evaluations under the verdicts in force."""
    return _EPOCH.sub(_SECONDS[dialect], sql).replace("judged AS evaluations", f"({JUDGED}) AS evaluations")


@contextmanager
def ask(store: Store, name: str, values: Mapping[str, Value]) -> Iterator[Rows]:
    """Ask a named query.

    Raises:
        BadInput: there is no such query, parameter or run, or a required parameter is missing.
    """
    query = QUERIES.get(name)
    if query is None:
        raise BadInput(f"There is no query `{name}`; there are {', '.join(QUERIES)}.")
    given = _complete(query, values)
    with store.reading() as connection:
        known = text("SELECT 1 FROM runs WHERE name = :run")
        for run in (given.get("run"), given.get("other")):
            if run is not None and connection.execute(known, {"run": run}).first() is None:
                raise BadInput(f"There is no run named `{run}`.")
        sql = in_force(query.sql, connection.dialect.name)
        statement = text(sql).columns(**dict.fromkeys(query.times, UtcDateTime()))
        yield _rows(connection.execute(statement, given, execution_options={"yield_per": CHUNK}))


@contextmanager
def ask_sql(store: Store, sql: str) -> Iterator[Rows]:
    """Ask in SQL of the database's own dialect, over a connection that can change nothing.

    Raises:
        BadInput: the database refuses the statement, or it gives no rows.
    """
    with store.reading() as connection:
        # `no_parameters`: a percent sign in somebody's SQL is only a percent sign.
        options = {"no_parameters": True, "stream_results": True, "max_row_buffer": CHUNK}
        result = connection.execution_options(**options).exec_driver_sql(sql)
        if not result.returns_rows:
            raise BadInput("The statement gives no rows; only reading is possible here.")
        yield _rows(result)


def _complete(query: NamedQuery, values: Mapping[str, Value]) -> dict[str, Value]:
    unknown = sorted(set(values) - set(query.parameters))
    if unknown:
        takes = ", ".join(query.parameters)
        raise BadInput(f"The query `{query.name}` takes no `{unknown[0]}`; it takes {takes}.")
    given: dict[str, Value] = {}
    for name, parameter in query.parameters.items():
        value = values.get(name, parameter.default)
        if value is None and parameter.required:
            raise BadInput(f"The query `{query.name}` needs `{name}`: {parameter.sentence}.")
        try:
            given[name] = None if value is None else parameter.kind(value)
        except ValueError as error:
            raise BadInput(f"`{name}` must be {parameter.sentence}, not `{value}`.") from error
    return {name: escape(value) if isinstance(value, str) else value for name, value in given.items()}


def _rows(result: CursorResult[Any]) -> Rows:
    return Rows(tuple(result.keys()), (_plain(row) for row in result))


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    """Make values the same whatever the driver: times as ISO 8601, decimals as floats, bytes as hex."""
    return tuple(_plain_value(value) for value in row)


def _plain_value(value: Any) -> Any:
    if isinstance(value, str):
        return unescape(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return value
