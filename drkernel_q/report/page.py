"""The page: figures, tables and sources of runs, in one file of HTML without scripts."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from drkernel_q.report import figure
from drkernel_q.report.facts import BEST, PROBLEMS, Facts, Rows
from drkernel_q.report.figure import Figure

_STYLE = """
:root{color-scheme:light dark;--ink:#222222;--paper:#fff;--line:#cccccc;--pale:#f4f4f4;--plus:#dff3e4;--minus:#fbe3e0}
@media (prefers-color-scheme:dark){:root{--ink:#dddddd;--paper:#161616;--line:#444444;--pale:#222;--plus:#173a22;
--minus:#47211c;--c0:#5aaee0;--c1:#f08a4b;--c2:#3cc29a;--c3:#e0a3c6;--c4:#e6b84d;--c5:#9fd6f5}}
body{font:16px/1.5 sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:auto;padding:1rem}
figure{display:inline-block;vertical-align:top;margin:0 1rem 1rem 0;max-width:100%}svg{max-width:100%;height:auto}
table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child{text-align:left}.wide,pre{overflow:auto}.wide{max-height:32rem}
figure details{font-size:.85rem}figure .wide{max-height:16rem;max-width:28rem}
pre{background:var(--pale);padding:.7rem;font-size:.85rem}ins,del{text-decoration:none;display:block}
ins{background:var(--plus)}del{background:var(--minus)}h4{margin:.7rem 0 .2rem}
summary{cursor:pointer}a{color:inherit}
:is(summary,a,.wide,pre):focus-visible{outline:2px solid var(--c0,#0072b2);outline-offset:1px}
"""
_CHANGES = {"+": "ins", "-": "del"}
#: What a run holds, in the table of several.
_RUNS = ("run", "kind", "created_at", "trajectories", "turns", "evaluations", "honest", "rejected", "best")


def page(title: str, runs: Rows, facts: Sequence[Facts]) -> str:
    """Return the report as HTML: of one run, or an overview of `runs` and those of them that there are facts of."""
    several = len(facts) != 1 or len(runs) > 1
    parts = [f"<h1>{escape(title)}</h1>"]
    if several:
        parts += [_overview(runs, facts), *map(_figure, compared(facts))]
    parts += [_run(each, headed=several) for each in facts]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>\n'


def compared(facts: Sequence[Facts]) -> list[Figure]:
    """Return the figures that several runs share: searches, side by side."""
    searches = {_strategy(each, facts): each.search for each in facts if each.search}
    return figure.of_searches(searches) if len(searches) > 1 else []


def _strategy(one: Facts, facts: Sequence[Facts]) -> str:
    """Name a search by its strategy where that is enough to tell it from the others."""

    def of(each: Facts) -> str:
        return str(((each.run.settings or {}).get("scaling") or {}).get("strategy", each.run.name))

    same = [each for each in facts if each.search and of(each) == of(one)]
    return of(one) if len(same) == 1 else f"{one.run.name} ({of(one)})"


def _overview(runs: Rows, facts: Sequence[Facts]) -> str:
    shown = {each.run.name for each in facts}
    rows = [dict(row) | {"created_at": str(row["created_at"])[:16].replace("T", " ")} for row in runs]
    links = {name: f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in shown}
    table = _table("Runs", _RUNS, ([row[name] for name in _RUNS] for row in rows), links)
    left_out = len(runs) - len(facts)
    told = f"<p>Of these, {left_out} are only listed.</p>" if left_out > 0 else ""
    return f"<h2>Runs</h2>{table}{told}"


def _run(facts: Facts, *, headed: bool) -> str:
    run, rates = facts.run, facts.rates
    summary = (
        f"{run.kind} run, begun {run.created_at:%Y-%m-%d %H:%M} UTC: {rates['evaluations']} kernels evaluated, "
        f"{rates['honest']} honest and correct, {_share(rates['hack_rate'])} rejected, "
        f"{_share(rates['lazy_rate'])} of the honest lazy."
    )
    heading = f'<h2 id="{_anchor(run.name)}">{escape(run.name)}</h2>' if headed else ""
    parts = [
        f"<section>{heading}<p>{escape(summary)}</p>",
        *map(_figure, figure.of_run(facts)),
        _section("Who cheats, by evidence", facts.evidence, ("code", "weight", "evaluations", "problems", "example")),
        *map(_example, facts.examples),
        _section(
            "By problem, most hacks first" if len(facts.by_problem) < PROBLEMS else f"The {PROBLEMS} worst problems",
            facts.by_problem,
            ("problem", "evaluations", "honest", "rejected", "lazy", "hack_rate", "lazy_rate"),
        ),
        "<h3>Laziest kernels</h3>" if facts.lazy else "",
        *map(_lazy, facts.lazy),
        f"<h3>Best kernels{f', the first {BEST}' if len(facts.best) == BEST else ''}</h3>" if facts.best else "",
        *map(_best, facts.best),
        "</section>",
    ]
    return "".join(parts)


def _figure(each: Figure) -> str:
    table = _table(each.title, each.columns, each.rows)
    return f"<figure>{each.svg}<details><summary>Numbers</summary>{table}</details></figure>"


def _section(title: str, rows: Rows, columns: Sequence[str]) -> str:
    if not rows:
        return ""
    return f"<h3>{escape(title)}</h3>{_table(title, columns, ([row[name] for name in columns] for row in rows))}"


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], links: Mapping[str, str] | None = None
) -> str:
    """A table in a box that a keyboard can scroll; first cells may be `links`, which are HTML."""
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in columns)
    percent = [name.endswith("_rate") for name in columns]
    body = "".join(
        f"<tr>{''.join(_cell(each, of, links or {}) for each, of in zip(row, percent, strict=True))}</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(title)}">{table}</div>'


def _cell(value: Any, percent: bool, links: Mapping[str, str]) -> str:
    if value is None:
        shown = "–"  # noqa: RUF001 - for people
    elif isinstance(value, bool):
        shown = "yes" if value else "no"
    elif isinstance(value, float):
        shown = f"{value:.1%}" if percent else f"{value:.4g}"
    else:
        shown = links.get(str(value)) or escape(str(value))
    return f"<td>{shown}</td>"


def _example(row: Mapping[str, Any]) -> str:
    speed = f", {row['speedup']:.2f}x" if row["speedup"] is not None else ""
    title = f"{row['code']} ({row['weight']}), {row['problem']}: {row['outcome']}{speed}"
    return _details(title, f"<p>{escape(row['detail'])}</p>{_source(row['source'])}")


def _lazy(row: Mapping[str, Any]) -> str:
    speed = f", {row['speedup']:.2f}x" if row["speedup"] is not None else ""
    title = f"{row['problem']}: {row['profile_ratio']:.2%} of the device time its own{speed}"
    return _details(title, _source(row["source"]))


def _best(row: Mapping[str, Any]) -> str:
    interval = f"[{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
    place = f", turn {row['turn']} of trajectory {row['trajectory']}" if row["turn"] is not None else ""
    title = f"{row['problem']}: {row['speedup']:.2f}x {interval} on {row['device_kind']}{place}"
    diff = f"<h4>Against the kernel before</h4>{_diff(row['before'], row['source'])}" if row["before"] else ""
    return _details(title, diff + ("<h4>Source</h4>" if diff else "") + _source(row["source"]))


def _details(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _source(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def _diff(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))[2:]
    if not lines:
        return "<p>The same.</p>"
    marked = (
        f"<{_CHANGES[line[0]]}>{escape(line)}</{_CHANGES[line[0]]}>" if line[0] in _CHANGES else f"{escape(line)}\n"
        for line in lines
    )
    return f'<pre tabindex="0">{"".join(marked)}</pre>'


def _anchor(name: str) -> str:
    return "run-" + "".join(each if each.isalnum() else f"-{ord(each):x}-" for each in name)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"  # noqa: RUF001 - for people
