"""Module-level constants of a reference, such as its sizes: found by AST, replaced in the text itself."""

import ast
import contextlib
import keyword
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from drkernel_q.errors import BadInput, BadProblem
from drkernel_q.problem.source import parse_source, targets

#: Constants larger than this are not offered for resizing; sizes are far smaller.
_MAX_NUMBER = 2**63
_MAX_EXPONENT = 64
#: Longest list that repetition may make.
_MAX_ITEMS = 4096

Constant: TypeAlias = "int | float | bool | str | tuple[Constant, ...] | list[Constant] | None"
"""A value that a module-level constant may have."""

_OPERATORS: dict[type[ast.operator | ast.unaryop], Callable[..., int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class NotConstantError(ValueError):
    """The expression is more than literals and arithmetic on them."""


class Span(NamedTuple):
    """Where the value of a constant stands in the source, in bytes."""

    name: str
    value: Constant
    start: int
    end: int
    prefix: str
    """Text to put before a new value; empty where the value itself is replaced."""


def evaluate_constant(node: ast.expr) -> Constant:
    """Value of an expression made of literals and arithmetic on numbers.

    Raises:
        NotConstantError: it holds anything else, or a number too large to be a size.
    """
    try:
        return _evaluate(node)
    except (ArithmeticError, RecursionError) as error:
        raise NotConstantError from error


def _evaluate(node: ast.expr) -> Constant:
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, int | float | str)):
        return node.value
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(item) for item in node.elts)
    if isinstance(node, ast.List):
        return [_evaluate(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp):
        return _apply(node.op, _number(node.operand))
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.List | ast.Tuple):
        return _repeated(node, node.left)
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > _MAX_EXPONENT:
            raise NotConstantError
        return _apply(node.op, left, right)
    raise NotConstantError


def _repeated(node: ast.BinOp, sequence: ast.List | ast.Tuple) -> Constant:
    """Value of numbers that are repeated, such as the layers `[1024] * 16`."""
    items: list[Constant] = [_number(item) for item in sequence.elts]
    count = _number(node.right)
    if not isinstance(node.op, ast.Mult) or not isinstance(count, int) or len(items) * count > _MAX_ITEMS:
        raise NotConstantError
    return items * count if isinstance(sequence, ast.List) else tuple(items) * count


def _number(node: ast.expr) -> int | float:
    value = _evaluate(node)
    if isinstance(value, int | float) and abs(value) < _MAX_NUMBER:
        return value
    raise NotConstantError


def _apply(kind: ast.operator | ast.unaryop, *operands: int | float) -> int | float:
    function = _OPERATORS.get(type(kind))
    value = function(*operands) if function else None
    # A negative number to a broken power is complex.
    if isinstance(value, int | float) and abs(value) < _MAX_NUMBER:
        return value
    raise NotConstantError


def constant_spans(source: str, where: str) -> list[Span]:
    """List the constants that the module assigns at its top level, in the order of the source."""
    spans: list[Span] = []
    starts = _line_starts(source)
    for statement in parse_source(source, where).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            spans.extend(_assigned(statement, statement.value, starts))
    return spans


def _line_starts(source: str) -> list[int]:
    data = source.encode("utf-8", "surrogatepass")
    return [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", data))]


def _assigned(statement: ast.Assign | ast.AnnAssign, value: ast.expr, starts: list[int]) -> Iterator[Span]:
    names = targets(statement)
    for target in names:
        for name, node in _pairs(target, value):
            try:
                constant = evaluate_constant(node)
            except NotConstantError:
                continue
            start, end = _offsets(node, starts)
            if len(names) == 1:
                yield Span(name, constant, start, end, "")
            else:
                # `a = b = 1` shares one value: a new one for `a` alone goes behind the statement.
                end = _offsets(statement, starts)[1]
                yield Span(name, constant, end, end, f"; {name} = ")


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for item, node in zip(target.elts, value.elts, strict=True):
            if isinstance(item, ast.Name):
                yield item.id, node


def _offsets(node: ast.expr | ast.stmt, starts: list[int]) -> tuple[int, int]:
    # Columns of the AST count UTF-8 bytes, and every parsed node has an end.
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column


def replace_constants(source: str, overrides: Mapping[str, Constant], where: str) -> str:
    """Give constants new values in the text itself; every other byte stays as it is.

    Raises:
        BadProblem: a name is no constant of the module, or a value cannot be written as a literal.
    """
    spans = constant_spans(source, where)
    known = dict.fromkeys(span.name for span in spans)
    for name in overrides:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise BadProblem(f"{where} has no module-level constant `{name}`; {has}.")
    data = source.encode()
    for span in sorted(spans, key=lambda span: span.start, reverse=True):
        if span.name in overrides:
            text = span.prefix + _literal(span.name, overrides[span.name])
            data = data[: span.start] + text.encode() + data[span.end :]
    return data.decode()


def _literal(name: str, value: Constant) -> str:
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError):
        pass
    raise BadProblem(f"The constant `{name}` cannot be set to {text}; give a finite number, a string or a tuple.")


def cpu_sizes(source: str, where: str) -> dict[str, Constant]:
    """Sizes for a slow device: the module's dict `CPU_SIZES`, or nothing.

    Raises:
        BadProblem: `CPU_SIZES` is something else than a dict of literals.
    """
    node = _cpu_sizes_node(source, where)
    return {} if node is None else _literal_dict(node, f"{where}, line {node.lineno}")


def replace_cpu_sizes(source: str, overrides: Mapping[str, Constant], where: str) -> str:
    """Give the entries of `CPU_SIZES` that `overrides` names new values; every other byte stays as it is."""
    node = _cpu_sizes_node(source, where)
    if not isinstance(node, ast.Dict):
        return source
    starts = _line_starts(source)
    data = source.encode()
    for key, value in reversed(list(zip(node.keys, node.values, strict=True))):
        if isinstance(key, ast.Constant) and key.value in overrides:
            start, end = _offsets(value, starts)
            data = data[:start] + _literal(str(key.value), overrides[str(key.value)]).encode() + data[end:]
    return data.decode()


def _cpu_sizes_node(source: str, where: str) -> ast.expr | None:
    for statement in parse_source(source, where).body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        if any(isinstance(target, ast.Name) and target.id == "CPU_SIZES" for target in targets(statement)):
            return statement.value
    return None


def _literal_dict(node: ast.expr | None, where: str) -> dict[str, Constant]:
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        names = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
        with contextlib.suppress(NotConstantError):
            return dict(zip(names, map(evaluate_constant, node.values), strict=True))
    raise BadProblem(f"{where}: `CPU_SIZES` must be a dict of literals, such as {{'batch_size': 4}}.")


def parse_override(text: str) -> tuple[str, Constant]:
    """Read `NAME=VALUE`, the value as a Python literal (arithmetic on numbers is allowed).

    Raises:
        BadInput: with the reason.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier() or keyword.iskeyword(name):
        raise BadInput(f"`{text}` is not NAME=VALUE, such as batch_size=4.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return name, evaluate_constant(ast.parse(value, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadInput(f"The value of `{text}` is no literal such as 4, 0.5, True, (3, 3) or 'text'.") from None
