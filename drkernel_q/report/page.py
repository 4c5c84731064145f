"""The page: figures, tables and sources of a run, in one file of HTML without scripts."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from drkernel_q.report.chart import Bar, bars, lines
from drkernel_q.report.facts import Facts, Rows

#: Best kernels whose source is shown, and problems that are listed.
SHOWN = 20
_STYLE = """
:root{color-scheme:light dark;--ink:#222;--paper:#fff;--line:#ccc;--pale:#f4f4f4}
@media (prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#161616;--line:#444;--pale:#222}}
body{font:16px/1.5 sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:auto;padding:1rem}
figure{display:inline-block;margin:0 1rem 1rem 0;max-width:100%}
figcaption{font-weight:bold}svg{max-width:100%;height:auto}
table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child{text-align:left}.wide,pre{overflow-x:auto}pre{background:var(--pale);padding:.7rem}
summary{cursor:pointer}summary:focus-visible,a:focus-visible,.wide:focus-visible{outline:2px solid #0072b2}
"""
#: Figures over training steps: title, and the numbers of the record that it shows; shares are percent.
_TRAINING = (
    ("Reward", {"mean": "reward/mean"}, False),
    ("Entropy, nat", {"policy": "policy/entropy"}, False),
    ("Gradient norm", {"norm": "policy/grad_norm"}, False),
    ("Perplexity", {"sampler": "mrs/ppl_sampler", "trainer": "mrs/ppl_train"}, False),
    ("Kept by MRS and PRS", {"MRS": "mrs/acceptance", "PRS": "prs/acceptance"}, True),
)


def page(facts: Facts) -> str:
    """Return the report as HTML."""
    run, rates = facts.run, facts.rates
    figures_ = "".join(_figure(title, svg) for title, svg in figures(facts).items())
    summary = (
        f"{run.kind} run, begun {run.created_at:%Y-%m-%d %H:%M} UTC: {rates['evaluations']} kernels evaluated, "
        f"{rates['honest']} honest and correct, {_share(rates['hack_rate'])} rejected, "
        f"{_share(rates['lazy_rate'])} of the honest lazy."
    )
    parts = [
        f"<h1>{escape(run.name)}</h1><p>{escape(summary)}</p>{figures_}",
        _section("Who cheats, by evidence", facts.evidence, ("code", "weight", "evaluations", "problems")),
        _section(
            "By problem",
            facts.by_problem[:SHOWN],
            ("problem", "evaluations", "honest", "rejected", "lazy", "hack_rate", "lazy_rate"),
        ),
        "<h2>Best kernels</h2>" if facts.best else "",
        *(_kernel(row) for row in facts.best[:SHOWN]),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(run.name)}</title>'
    body = "".join(parts)
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}</main></body></html>\n'


def figures(facts: Facts) -> dict[str, str]:
    """Return each figure as SVG, by its title; what there are no numbers for is left out."""
    found = {
        "Fast@p by turn": _by_turn("Fast@p by turn", facts.by_turn, "fast_p"),
        "Fast@p, best so far": _by_turn("Fast@p, best so far", facts.by_turn, "best_so_far"),
        "Hacks and laziness by step": lines(
            "Hacks and laziness by step",
            "step",
            {
                "rejected": _points(facts.by_step, "step", "hack_rate"),
                "lazy": _points(facts.by_step, "step", "lazy_rate"),
            },
            percent=True,
        ),
        "Device time of the laziest and of the least lazy kernel": _profiles(facts.profiles),
    }
    for title, names, percent in _TRAINING:
        series = {label: _points(facts.record, "step", name) for label, name in names.items()}
        found[title] = lines(title, "step", {label: each for label, each in series.items() if each}, percent=percent)
    return {title: svg for title, svg in found.items() if svg}


def _by_turn(title: str, by_turn: Mapping[float, Rows], name: str) -> str:
    series = {f"Fast@{p:g}": _points(rows, "turn", name) for p, rows in by_turn.items()}
    return lines(title, "turn", series, percent=True)


def _points(rows: Rows, x: str, y: str) -> list[tuple[float, float]]:
    return [(float(row[x]), float(row[y])) for row in rows if row.get(y) is not None]


def _profiles(rows: Rows) -> str:
    kernels: dict[str, list[Bar]] = {}
    for row in rows:
        title = f"{row['problem']}: {row['profile_ratio']:.0%} its own"
        kernels.setdefault(title, []).append(Bar(row["name"], row["device_us"], row["origin"] == "candidate"))
    return bars("Device time of the laziest and of the least lazy kernel", kernels) if kernels else ""


def _figure(title: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def _section(title: str, rows: Rows, columns: Sequence[str]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in columns)
    lines_ = "".join(f"<tr>{_cells(row[name] for name in columns)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines_}</tbody></table>"
    return f'<h2>{escape(title)}</h2><div class="wide" tabindex="0">{table}</div>'


def _cells(values: Iterable[Any]) -> str:
    shown = (_share(each) if each is None or isinstance(each, float) else str(each) for each in values)
    return "".join(f"<td>{escape(each)}</td>" for each in shown)


def _kernel(row: Mapping[str, Any]) -> str:
    interval = f"[{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
    title = f"{row['problem']}: {row['speedup']:.2f}x {interval} on {row['device_kind']}"
    return f"<details><summary>{escape(title)}</summary><pre>{escape(row['source'])}</pre></details>"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"  # noqa: RUF001 - for people
