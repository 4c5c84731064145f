"""Charts as SVG text: drawn here, so that a page needs no script, no network and no plotting package.

Ink and grid follow the page, light or dark; outside of a page the fallbacks hold. Every mark has a title, which
browsers show and screen readers read.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 40
#: Series colours by position (Okabe and Ito, which colour-blind readers can tell apart).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_TICKS = 4
_NUMBER = "{:.3g}"


class Bar(NamedTuple):
    """One part of a bar."""

    name: str
    value: float
    own: bool
    """Whether it is the candidate's own kernel."""


def lines(title: str, x: str, series: Mapping[str, Sequence[tuple[float, float]]], *, percent: bool = False) -> str:
    """Draw series of (x, y) points; the y axis begins at 0 and ends at 1 for shares (`percent`)."""
    points = [point for each in series.values() for point in each]
    if not points:
        return ""
    first, last = min(point[0] for point in points), max(point[0] for point in points)
    lowest = min(0.0, *(point[1] for point in points))
    highest = 1.0 if percent else max(point[1] for point in points) or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - first) / (last - first) if last > first else 0.5
        up = (point[1] - lowest) / (highest - lowest)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    marks = _axes(x, (first, last), (lowest, highest), percent=percent)
    for (name, each), colour in zip(series.items(), COLOURS * len(series), strict=False):
        path = " ".join(f"{across:.1f},{up:.1f}" for across, up in map(place, each))
        marks.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        for point in each if len(each) <= WIDTH // 10 else ():
            across, up = place(point)
            said = escape(f"{name}: {_shown(point[1], percent=percent)} at {x} {_NUMBER.format(point[0])}")
            marks.append(
                f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}"><title>{said}</title></circle>'
            )
    return _svg(title, marks, list(series))


def bars(title: str, rows: Mapping[str, Sequence[Bar]]) -> str:
    """Draw one horizontal bar a row, of parts that are shares of its whole; own kernels are filled, others pale."""
    marks, height = [], (HEIGHT - TOP - BOTTOM) / max(len(rows), 1)
    for index, (name, parts) in enumerate(rows.items()):
        whole = sum(part.value for part in parts) or 1.0
        top, left = TOP + index * height, float(LEFT)
        marks.append(f'<text x="{LEFT}" y="{top + 14:.1f}" class="label">{escape(name)}</text>')
        for part in sorted(parts, key=lambda each: -each.value):
            width = part.value / whole * (WIDTH - LEFT - RIGHT)
            colour = COLOURS[2] if part.own else COLOURS[1]
            said = escape(f"{part.name}: {part.value / whole:.1%}, {'its own' if part.own else 'not its own'}")
            marks.append(
                f'<rect x="{left:.1f}" y="{top + 20:.1f}" width="{max(width - 1, 0.5):.1f}" height="{height - 34:.1f}" '
                f'fill="{colour}"><title>{said}</title></rect>'
            )
            left += width
    return _svg(title, marks, [])


def _axes(x: str, across: tuple[float, float], up: tuple[float, float], *, percent: bool) -> list[str]:
    marks = []
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        value = _shown(up[0] + share * (up[1] - up[0]), percent=percent)
        marks.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        marks.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="label">{value}</text>')
    for share, anchor in ((0.0, "start"), (1.0, "end")):
        place = LEFT + share * (WIDTH - LEFT - RIGHT)
        value = _NUMBER.format(across[0] + share * (across[1] - across[0]))
        marks.append(f'<text x="{place}" y="{HEIGHT - 22}" text-anchor="{anchor}" class="label">{value}</text>')
    marks.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 22}" text-anchor="middle" class="label">{escape(x)}</text>')
    return marks


def _svg(title: str, marks: Sequence[str], names: Sequence[str]) -> str:
    legend, left = [], float(LEFT)
    for name, colour in zip(names, COLOURS * len(names), strict=False):
        legend.append(f'<rect x="{left:.0f}" y="{HEIGHT - 13}" width="10" height="10" fill="{colour}"/>')
        legend.append(f'<text x="{left + 14:.0f}" y="{HEIGHT - 4}" class="label">{escape(name)}</text>')
        left += 24 + 7 * len(name)
    style = ".label{font:12px sans-serif;fill:var(--ink,#333)}.grid{stroke:var(--line,#ccc)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title><style>{style}</style>'
        f"{''.join(marks)}{''.join(legend)}</svg>"
    )


def _shown(value: float, *, percent: bool) -> str:
    return f"{value:.0%}" if percent else _NUMBER.format(value)
