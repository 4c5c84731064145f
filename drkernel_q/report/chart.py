"""Charts as SVG text: drawn here, so that a page needs no script, no network and no plotting package.

Ink and colours follow the page, light or dark; outside of a page the fallbacks hold (`standalone`). Every mark has a
title, which browsers show and screen readers read.
"""

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 36, 62
#: Series colours by position (Okabe and Ito, which colour-blind readers can tell apart), as the page may change them.
COLOURS = tuple(
    f"var(--c{place},{colour})"
    for place, colour in enumerate(("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07c00", "#56b4e9"))
)
#: Colours of the candidate's own kernels and of others.
OWN, OTHER = COLOURS[2], COLOURS[1]
#: Points of a line that are marked one by one; more would hide it.
MARKED = 40
#: Bars of a panel; what is smaller is summed up.
BARS = 6
_TICKS = 4
#: From here on numbers are written out, without a fraction.
_LARGE = 1000
#: About the width of a letter.
_LETTER = 6.3
_ROW = 30
_NAME = 40
_VARIABLE = re.compile(r"var\(--[a-z0-9]+,(#[0-9a-f]+)\)")
_STYLE = (
    ".label{font:12px sans-serif;fill:var(--ink,#333333)}.title{font:bold 13px sans-serif;fill:var(--ink,#333333)}"
    ".grid{stroke:var(--line,#cccccc)}"
)


class Bar(NamedTuple):
    """One kernel of a profile."""

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
    highest = 1.0 if percent else _ceiling(max(point[1] for point in points))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - first) / (last - first) if last > first else 0.5
        up = (point[1] - lowest) / (highest - lowest)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    marks = _axes(x, (first, last), (lowest, highest), percent=percent)
    for number, (name, each) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across:.1f},{up:.1f}" for across, up in map(place, each))
        # Every second line is dashed too, for those who see no colours.
        dashes = ' stroke-dasharray="6 3"' if number % 2 else ""
        marks.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dashes} points="{path}"/>')
        for point in each if len(each) <= MARKED else ():
            across, up = place(point)
            said = escape(f"{name}: {shown(point[1], percent=percent)} at {x} {shown(point[0], percent=False)}")
            marks.append(
                f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}"><title>{said}</title></circle>'
            )
    return _svg(title, [*marks, *_legend(list(series))], (WIDTH, HEIGHT))


def bars(title: str, panels: Mapping[str, Sequence[Bar]]) -> str:
    """Draw panels side by side, each with a bar a kernel: its share of the panel's whole."""
    if not panels:
        return ""
    folded = [(name, _fold(parts)) for name, parts in panels.items()]
    height = TOP + 26 + _ROW * max(len(parts) for _, parts in folded) + 30
    marks = []
    for number, (name, parts) in enumerate(folded):
        left = 10 + number * WIDTH
        marks.append(f'<text x="{left}" y="{TOP + 12}" class="label">{escape(_cut(name, 64))}</text>')
        whole = sum(part.value for part in parts) or 1.0
        for row, part in enumerate(parts):
            marks += _bar(part, part.value / whole, (left, TOP + 26 + row * _ROW))
    marks += _key((10, height - 18), (("its own kernel", OWN), ("somebody else's", OTHER)))
    return _svg(title, marks, (WIDTH * len(folded), height))


def standalone(svg: str) -> str:
    """Return a chart for where there is no page around it: on white, with its own colours."""
    plain = _VARIABLE.sub(r"\1", svg)
    return re.sub(r"(</style>)", r'\1<rect width="100%" height="100%" fill="#ffffff"/>', plain, count=1)


def shown(value: float, *, percent: bool) -> str:
    """Return a number as it is written at an axis."""
    if percent:
        return f"{value:.0%}"
    return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:.3g}"


def _bar(part: Bar, share: float, corner: tuple[float, float]) -> list[str]:
    left, top = corner
    said = escape(f"{part.name}: {share:.1%}, {'its own' if part.own else 'not its own'}")
    width = max(share * (WIDTH - 70), 0.5)
    return [
        f'<text x="{left}" y="{top + 11:.1f}" class="label">{escape(_cut(part.name, _NAME))}</text>',
        f'<rect x="{left}" y="{top + 15:.1f}" width="{width:.1f}" height="9" fill="{OWN if part.own else OTHER}">'
        f"<title>{said}</title></rect>",
        f'<text x="{left + width + 4:.1f}" y="{top + 24:.1f}" class="label">{share:.1%}</text>',
    ]


def _fold(parts: Sequence[Bar]) -> list[Bar]:
    """The longest bars, and all others in one for each side."""
    ordered = sorted(parts, key=lambda part: -part.value)
    kept, rest = ordered[:BARS], ordered[BARS:]
    for own in (True, False):
        same = [part.value for part in rest if part.own is own]
        if same:
            kept.append(Bar(f"{len(same)} others", sum(same), own))
    return kept


def _ceiling(value: float) -> float:
    """The next number above whose quarters are short."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * unit >= value)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _axes(x: str, across: tuple[float, float], up: tuple[float, float], *, percent: bool) -> list[str]:
    marks = []
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        value = shown(up[0] + share * (up[1] - up[0]), percent=percent)
        marks.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        marks.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="label">{value}</text>')
    row = HEIGHT - BOTTOM + 16
    for share, anchor in ((0.0, "start"), (1.0, "end")):
        place = LEFT + share * (WIDTH - LEFT - RIGHT)
        value = shown(across[0] + share * (across[1] - across[0]), percent=False)
        marks.append(f'<text x="{place}" y="{row}" text-anchor="{anchor}" class="label">{value}</text>')
    marks.append(f'<text x="{WIDTH / 2}" y="{row}" text-anchor="middle" class="label">{escape(x)}</text>')
    return marks


def _legend(names: Sequence[str]) -> list[str]:
    return _key((LEFT, HEIGHT - 34), [(name, COLOURS[place % len(COLOURS)]) for place, name in enumerate(names)])


def _key(corner: tuple[float, float], entries: Sequence[tuple[str, str]]) -> list[str]:
    """What each colour stands for; a second line where one is full."""
    marks, (left, top) = [], corner
    for name, colour in entries:
        width = 26 + _LETTER * len(name)
        if left + width > WIDTH and left > corner[0]:
            left, top = corner[0], top + 16
        marks.append(f'<rect x="{left:.0f}" y="{top:.0f}" width="10" height="10" fill="{colour}"/>')
        marks.append(f'<text x="{left + 14:.0f}" y="{top + 9:.0f}" class="label">{escape(name)}</text>')
        left += width
    return marks


def _svg(title: str, marks: Sequence[str], size: tuple[float, float]) -> str:
    width, height = size
    heading = f'<text x="10" y="20" class="title">{escape(title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"{heading}{''.join(marks)}</svg>"
    )
