"""Normal form of Python source: what is left when names, comments and layout are taken away."""

import ast
import builtins
from typing import Any

from drkernel_q.value import content_hash

#: Names that mean something; they are kept.
_KEPT = frozenset({*dir(builtins), "torch", "nn", "F", "triton", "tl", "libdevice", "self", "Model", "ModelNew"})


def normal_form(source: str) -> str:
    """Return the syntax tree as text, with names of the source's own numbered in their order, without docstrings.

    Text that is no Python is only stripped of white space.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "".join(source.split())
    return ast.dump(_Renamed().visit(tree), annotate_fields=False)


def normal_hash(source: str) -> str:
    """Hash of the normal form: equal for sources that differ in names, comments and layout alone."""
    return content_hash("normal", normal_form(source))


class _Renamed(ast.NodeTransformer):
    """Numbers the names that a source makes up, and leaves out its docstrings."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def visit(self, node: ast.AST) -> Any:
        for field in ("id", "arg", "name"):
            value = getattr(node, field, None)
            if isinstance(value, str) and not isinstance(node, ast.alias):
                setattr(node, field, self._named(value))
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]
        return self.generic_visit(node)

    def _named(self, name: str) -> str:
        if name in _KEPT:
            return name
        return self._names.setdefault(name, f"n{len(self._names)}")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
