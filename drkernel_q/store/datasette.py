"""Datasette: the named queries as canned queries of its pages, for a store in SQLite."""

import re
from typing import Any

from drkernel_q.store.named import NamedQuery, Parameter
from drkernel_q.store.query import QUERIES, in_force

#: Functions that drkq gives its own connections, and Datasette's have not.
_OURS = re.compile(r"\bsplit_part\(")
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_SQL_TYPES = {str: "TEXT", int: "INTEGER", float: "REAL"}
#: Columns to count by, beside a table.
_FACETS = {
    "evaluations": ["outcome", "integrity", "device_kind", "run_id"],
    "turns": ["finish_reason", "policy_version"],
    "evidence": ["code", "weight"],
    "attempts": ["failure_kind", "worker"],
    "runs": ["kind"],
    "audit_flags": ["code"],
    "profile_kernels": ["origin"],
}


def configuration(database: str) -> dict[str, Any]:
    """Return what Datasette is to know of the database of this name (the file's name without its ending)."""
    canned = {query.name: _canned(query) for query in QUERIES.values() if not _OURS.search(query.sql)}
    tables = {name: {"facets": facets} for name, facets in _FACETS.items()}
    return {"databases": {database: {"queries": canned, "tables": tables}}}


def _canned(query: NamedQuery) -> dict[str, Any]:
    sql = _PARAMETER.sub(lambda match: _expression(match[1], query.parameters[match[1]]), in_force(query.sql, "sqlite"))
    takes = "; ".join(f"{name}: {parameter.sentence}" for name, parameter in query.parameters.items())
    return {"title": query.name, "description": f"{query.sentence} {takes}".strip(), "sql": sql}


def _expression(name: str, parameter: Parameter) -> str:
    """What a field of a form stands for: it is text, and empty where nothing was entered."""
    default = "NULL" if parameter.default is None else repr(parameter.default)
    return f"CAST(COALESCE(NULLIF(:{name}, ''), {default}) AS {_SQL_TYPES[parameter.kind]})"
