"""Image: figures as files of their own, SVG or PNG."""

import importlib
from pathlib import Path

from drkernel_q.errors import MissingExtra
from drkernel_q.report.chart import standalone

#: Pixels for each unit of a figure.
SCALE = 2.0


def write_svg(svg: str, path: Path) -> None:
    """Write a figure as a file that needs no page."""
    path.write_text(standalone(svg), encoding="utf-8")


def write_png(svg: str, path: Path) -> None:
    """Write a figure as pixels.

    Raises:
        MissingExtra: the package that draws them is not installed.
    """
    try:
        converter = importlib.import_module("vl_convert")
    except ImportError:
        raise MissingExtra("PNG files need `pip install 'drkq[report]'`.") from None
    path.write_bytes(converter.svg_to_png(standalone(svg), scale=SCALE))


WRITERS = {"svg": write_svg, "png": write_png}
