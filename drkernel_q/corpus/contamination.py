"""Contamination: which problems of a training set are those of a benchmark, or next to them."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from drkernel_q.corpus.normal import normal_form
from drkernel_q.problem import Problem

#: Share of common pieces beyond which two references are the same but for details.
LEAST_SIMILARITY = 0.8
#: Length of a piece, in parts of the normal form.
_PIECE = 8


class Overlap(NamedTuple):
    """A problem that a benchmark has too."""

    problem: str
    benchmark: str
    """Name of the benchmark's problem that is nearest."""
    similarity: float
    """Share of pieces in common, 0 to 1; 1 for the same module but for names and sizes."""


def overlaps(
    problems: Iterable[Problem], benchmark: Sequence[Problem], least: float = LEAST_SIMILARITY
) -> Mapping[str, Overlap]:
    """Find, by hash, the problems that are at least so similar to one of a benchmark.

    Only the classes and functions that the model needs are compared: sizes and inputs say little about what is asked.
    """
    known = [(each.name, _Shape.of(each.source)) for each in benchmark]
    found = {}
    for problem in problems:
        shape = _Shape.of(problem.source)
        nearest = max(((shape.similarity(other), name) for name, other in known), default=(0.0, ""))
        if nearest[0] >= least:
            found[problem.hash] = Overlap(problem.name, nearest[1], nearest[0])
    return found


class _Shape(NamedTuple):
    """What a reference asks for, without the names and sizes of its own."""

    operators: frozenset[str]
    """Functions, methods and arithmetic that it uses."""
    pieces: frozenset[tuple[str, ...]]
    """Runs of its normal form."""

    @classmethod
    def of(cls, source: str) -> "_Shape":
        model = _model(source)
        words = normal_form(model).replace("(", " ( ").replace(",", " ").replace(")", " ) ").split()
        pieces = (tuple(words[start : start + _PIECE]) for start in range(max(1, len(words) - _PIECE + 1)))
        return cls(_operators(model), frozenset(pieces))

    def similarity(self, other: "_Shape") -> float:
        """Share of pieces in common, less where operators differ: in a short module those are all that is asked."""
        return _common(self.pieces, other.pieces) * _common(self.operators, other.operators)


def _operators(source: str) -> frozenset[str]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    called = {node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    arithmetic = {type(node.op).__name__ for node in nodes if isinstance(node, ast.BinOp)}
    return frozenset((called - {"__init__"}) | arithmetic)


def _model(source: str) -> str:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    kept = [
        node
        for node in body
        if isinstance(node, ast.ClassDef)
        or (isinstance(node, ast.FunctionDef) and node.name not in ("get_inputs", "get_init_inputs"))
    ]
    return "\n".join(ast.unparse(node) for node in kept)


def _common(left: frozenset[Any], right: frozenset[Any]) -> float:
    return len(left & right) / len(left | right) if left | right else 1.0
