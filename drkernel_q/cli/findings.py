"""How audits are shown: a line for people, a document for programs, a table for a page; and those that are stored."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drkernel_q.audit import Audit, Flag, FlagCode
from drkernel_q.cli.output import say
from drkernel_q.errors import MissingExtra, NoStore, OutdatedStore
from drkernel_q.problem import Problem
from drkernel_q.settings import Settings

if TYPE_CHECKING:
    from drkernel_q.store import Store

_COLUMNS = ("problem", "flags", "ms", "compile, ms", "kernels", "error", "least MB", "GFLOP", "peak GB")
#: Flags whose detail names tensors; of the others the table shows the code alone.
_NAMING = frozenset({FlagCode.INPUT_INSENSITIVE, FlagCode.WEIGHT_INSENSITIVE, FlagCode.WEIGHT_CONSTANT})
#: Most characters of a detail in a table.
_DETAIL_CHARS = 60


@contextmanager
def readable_store(settings: Settings) -> "Iterator[Store | None]":
    """Open the store for a block; where it is not there, or cannot be read, that is said and there is none."""
    from drkernel_q.store import Store

    try:
        store = Store.open(settings.store)
    except (NoStore, MissingExtra) as error:
        say(f"The store cannot be read. {error}")
        yield None
        return
    with store:
        yield store if _is_readable(store) else None


def _is_readable(store: "Store") -> bool:
    if store.path is not None and not store.path.exists():
        return False
    try:
        store.check()
    except (NoStore, OutdatedStore) as error:
        say(f"The store cannot be read. {error}")
        return False
    return True


def stored_audits(settings: Settings, problems: Iterable[Problem]) -> dict[str, Mapping[str, Audit]]:
    """Find what the store knows of problems, by hash and kind of device; where it cannot be read, nothing is known."""
    with readable_store(settings) as store:
        try:
            return {} if store is None else {problem.hash: store.audits(problem.hash) for problem in problems}
        except NoStore as error:
            say(f"No audit can be looked up. {error}")
            return {}


def document(problem: Problem, audit: Audit) -> dict[str, Any]:
    """Return the JSON document of one audit; its fields are described in docs/reference/audit.md."""
    return {"problem": {"name": problem.name, "hash": problem.hash}} | audit.model_dump(mode="json")


def line(problem: Problem, audit: Audit) -> str:
    """Return one line for people."""
    if audit.unusable is not None:
        return f"{problem.name}   unusable   {' '.join(audit.unusable.split())}"
    parts = [problem.name, "speed counts" if audit.speed_rewarded else "no speed reward"]
    parts += [f"{flag.code.value}: {flag.detail}" for flag in audit.flags]
    parts += [f"{what} not measured: {why}" for what, why in audit.gaps.items() if what != "fp64"]
    if audit.reference_ms is not None:
        parts.append(f"{audit.reference_ms:.3g} ms")
    return "   ".join(parts)


def markdown(rows: Sequence[tuple[str, Audit]]) -> str:
    """Return a table in Markdown, one named problem a row, and below it how often each flag was raised."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "| --- | --- |" + " ---: |" * (len(_COLUMNS) - 2)]
    lines += [f"| {' | '.join(_cells(name, audit))} |" for name, audit in rows]
    counts = Counter(flag.code.value for _, audit in rows for flag in audit.flags)
    rewarded = sum(audit.speed_rewarded for _, audit in rows)
    lines += ["", f"{len(rows)} problems; speed is rewarded on {rewarded}. Flags: {_counted(counts)}."]
    return "\n".join(lines)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{code} {number}" for code, number in counts.most_common()) or "none"


def _cells(name: str, audit: Audit) -> list[str]:
    return [
        name,
        "; ".join(map(_shown, audit.flags)),
        _number(audit.reference_ms),
        _number(audit.compile_ms),
        _number(audit.kernels),
        _number(audit.relative_l2),
        _number(audit.bytes_least, 1e6),
        _number(audit.flops, 1e9),
        _number(audit.peak_bytes, 1e9),
    ]


def _shown(flag: Flag) -> str:
    if flag.code is not FlagCode.UNUSABLE and flag.code not in _NAMING:
        return flag.code.value
    detail = " ".join(flag.detail.replace("|", "/").split())
    short = detail if len(detail) <= _DETAIL_CHARS else detail[: _DETAIL_CHARS - 1] + "…"
    return f"{flag.code.value} ({short})"


def _number(value: float | None, unit: float = 1.0) -> str:
    return "" if value is None else f"{value / unit:.3g}"
