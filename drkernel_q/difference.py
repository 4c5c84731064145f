"""Difference: how the kernel of a turn differs from that of the turn before."""

import difflib
from collections.abc import Iterator

from drkernel_q.trajectory import Trajectory, Turn


def before(trajectory: Trajectory, turn: Turn) -> Turn | None:
    """Find the last turn with a kernel before this one."""
    earlier = [each for each in trajectory.turns if each.number < turn.number and each.kernel is not None]
    return earlier[-1] if earlier else None


def kernel_diff(before: Turn | None, after: Turn) -> Iterator[str]:
    """Return the lines of a unified diff from the kernel of one turn to that of another; no turn is an empty file."""
    return text_diff(*(_titled(turn) for turn in (before, after)))


def text_diff(one: tuple[str, str], other: tuple[str, str]) -> Iterator[str]:
    """Return the lines of a unified diff of two texts, each with a title in front."""
    (title, text), (new_title, new_text) = one, other
    return difflib.unified_diff(text.splitlines(), new_text.splitlines(), title, new_title, lineterm="")


def _titled(turn: Turn | None) -> tuple[str, str]:
    source = turn.kernel.source if turn and turn.kernel else ""
    return (f"turn {turn.number}" if turn else "nothing"), source
