"""Layout: grades as the article's tables, for a terminal, Markdown and LaTeX, and as rows for CSV."""

from collections.abc import Iterable, Sequence
from typing import Any

from drkernel_q.evaluation import Baseline
from drkernel_q.metric import THRESHOLDS
from policy.grading.grade import Grade, Interval
from policy.grading.published import published

COLUMNS = ("model", "part", "problems", "samples", "correct", *(f"fast_{p:g}" for p in THRESHOLDS))
TITLES = {
    Baseline.EAGER: "Fast@p over eager PyTorch",
    Baseline.COMPILE: "Fast@p over torch.compile",
    Baseline.MAX_AUTOTUNE: "Fast@p over torch.compile, max-autotune",
}


def tables(name: str, grades: Sequence[Grade], *, compared: bool) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Return a table of text for each baseline, with its title; `compared` adds the rows that the article prints."""
    found = []
    for baseline in dict.fromkeys(grade.baseline for grade in grades):
        own = [grade for grade in grades if grade.baseline is baseline]
        rows = [_own(name, grade) for grade in own]
        if compared:
            rows += _others(baseline, {grade.part for grade in own})
        found.append((TITLES[baseline], rows))
    return found


def markdown(name: str, grades: Sequence[Grade], *, compared: bool) -> str:
    """Return the tables in Markdown."""
    lines = []
    for title, rows in tables(name, grades, compared=compared):
        lines += [f"## {title}", "", f"| {' | '.join(COLUMNS)} |", "| --- | --- |" + " ---: |" * (len(COLUMNS) - 2)]
        lines += [f"| {' | '.join(row)} |" for row in rows] + ["", *notes(grades), ""]
    return "\n".join(lines).rstrip()


def latex(name: str, grades: Sequence[Grade], *, compared: bool) -> str:
    """Return the tables in LaTeX, with rules of booktabs."""
    lines = []
    for title, rows in tables(name, grades, compared=compared):
        lines += [f"% {title}", rf"\begin{{tabular}}{{ll{'r' * (len(COLUMNS) - 2)}}}", r"\toprule"]
        lines += [_tex(COLUMNS), r"\midrule", *map(_tex, rows), r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines).rstrip()


def rows(name: str, grades: Sequence[Grade]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return columns and rows of numbers, one grade a row, each share with the ends of its interval."""
    columns = ["model", "part", "baseline", "pick", "sound_only", "problems", "samples"]
    shares = ["correct", *(f"fast_{p:g}" for p in THRESHOLDS), "hack_rate", "lazy_rate"]
    columns += [f"{share}{end}" for share in shares for end in ("", "_low", "_high")]
    lines = []
    for grade in grades:
        head = (name, grade.part, grade.baseline.value, grade.pick, grade.sound_only, grade.problems, grade.samples)
        found = (grade.correct, *grade.fast.values(), grade.hack_rate, grade.lazy_rate)
        lines.append(head + tuple(number for each in found for number in _ends(each)))
    return tuple(columns), lines


def notes(grades: Sequence[Grade]) -> list[str]:
    """Say what stands beside the tables: pass@k, and who cheats and who is lazy."""
    lines = []
    for grade in grades:
        if grade.baseline is grades[0].baseline and grade.pick == grades[0].pick:
            passes = ", ".join(f"pass@{k} {_percent(share)}" for k, share in grade.passes.items())
            rates = f"rejected {_percent(grade.hack_rate)}, lazy {_percent(grade.lazy_rate)}"
            lines.append(f"{_part(grade)}: {passes}; {rates}.")
    return [
        *lines,
        "Percent with 95 % intervals over problems; missing samples count as failures. † best of all turns.",
    ]


def _own(name: str, grade: Grade) -> tuple[str, ...]:
    model = f"{name}†" if grade.pick == "best" else name
    shares = (grade.correct, *grade.fast.values())
    return (model, _part(grade), str(grade.problems), str(grade.samples), *map(_percent, shares))


def _others(baseline: Baseline, parts: set[str]) -> Iterable[tuple[str, ...]]:
    """The article's rows about the levels that were graded."""
    for row in published(baseline):
        for level in sorted({level for level, _ in row.shares}):
            if f"level {level}" in parts:
                shares = [f"{100 * row.shares[level, p]:.1f}" for p in THRESHOLDS]
                yield (f"{row.model} (published)", f"level {level}", "", "", "", *shares)


def _part(grade: Grade) -> str:
    return f"{grade.part}, sound problems" if grade.sound_only else grade.part


def _percent(share: Interval | None) -> str:
    return "-" if share is None else f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def _ends(share: Interval | None) -> tuple[float | None, ...]:
    return (None, None, None) if share is None else (share.value, share.low, share.high)


def _tex(cells: Iterable[str]) -> str:
    escaped = [cell.replace("_", r"\_").replace("%", r"\%").replace("†", r"$^\dagger$") for cell in cells]
    return " & ".join(escaped) + r" \\"
