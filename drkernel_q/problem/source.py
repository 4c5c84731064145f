"""The source of a reference module, read as text: its names by AST alone; nothing is executed."""

import ast
import warnings
from collections.abc import Iterable, Iterator

from drkernel_q.errors import BadProblem

#: Largest reference source; KernelBench's longest is 20 kB.
MAX_PROBLEM_BYTES = 2**20


def parse_source(source: str, where: str) -> ast.Module:
    """Parse `source`; `where` is what messages call it.

    Raises:
        BadProblem: it is no Python.
    """
    try:
        with warnings.catch_warnings():
            # A reference with "\d" in a string is odd, not wrong.
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise BadProblem(f"{where}{line}: {error.msg}.") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadProblem(f"{where} cannot be parsed as Python: {error or 'it is nested too deeply'}.") from None


def check_source(source: str, where: str) -> None:
    """Check that `source` can be a reference: it parses and names `Model` and `get_inputs`.

    Raises:
        BadProblem: with one sentence that says what is wrong in `where`.
    """
    if len(source.encode("utf-8", "surrogatepass")) > MAX_PROBLEM_BYTES:
        raise BadProblem(f"{where} has more than {MAX_PROBLEM_BYTES} bytes, the most a reference may have.")
    names = module_names(source, where)
    if "Model" not in names and "ModelNew" in names:
        raise BadProblem(f"{where} has `ModelNew` but no class `Model`: it is a kernel, not a reference.")
    if "Model" not in names:
        raise BadProblem(f"{where} has no class `Model`.")
    if "get_inputs" not in names:
        raise BadProblem(f"{where} has no function `get_inputs`.")


def module_names(source: str, where: str) -> set[str]:
    """Name everything that the module binds at its top level."""
    try:
        return set(_bound(parse_source(source, where).body))
    except RecursionError:
        raise BadProblem(f"{where} cannot be read: it is nested too deeply.") from None


def _bound(statements: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from (name.id for target in targets(statement) for name in _names(target))
        else:
            for block in ("body", "orelse", "finalbody"):
                yield from _bound(getattr(statement, block, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _bound(handler.body)


def targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """List what an assignment assigns to; a bare annotation assigns to nothing."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if statement.value is not None else []


def _names(target: ast.expr) -> Iterator[ast.Name]:
    return (node for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def summary(source: str, where: str) -> str:
    """First line of the module's docstring, or else of the docstring of `Model`; empty if there is none."""
    tree = parse_source(source, where)
    models = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    texts = [ast.get_docstring(tree), *map(ast.get_docstring, models)]
    return next((text.strip().splitlines()[0] for text in texts if text and text.strip()), "")
