"""Rules of the source that no linter knows."""

import ast
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.need import ROOT

PACKAGES = ("drkernel_q", "workers", "policy")
MAX_LINES = 400
#: The built-in problems are data that the worker runs; they follow KernelBench's format, not ours.
MODULES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "problems" not in path.relative_to(ROOT).parts
]
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public functions and classes of a module, and the public methods of those classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (child for child in node.body if isinstance(child, kinds) and not child.name.startswith("_"))


def says_what_it_is(path: Path) -> str | None:
    return None if ast.get_docstring(parse(path)) else "has no docstring"


def public_names_say_what_they_are(path: Path) -> str | None:
    silent = [node.name for node in public(parse(path)) if not ast.get_docstring(node)]
    return f"no docstring: {', '.join(silent)}" if silent else None


def is_about_one_noun(path: Path) -> str | None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    return f"{lines} lines" if lines > MAX_LINES else None


def all_names_what_is_there(path: Path) -> str | None:
    """`__all__`, where there is one, is sorted and complete: every name in it exists."""
    tree = parse(path)
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            names = ast.literal_eval(node.value)
            if list(names) != sorted(names) or not set(names) <= set(defined(tree)):
                return "__all__ is not sorted, or names what is not there"
    return None


@pytest.mark.parametrize(
    "rule", [says_what_it_is, public_names_say_what_they_are, is_about_one_noun, all_names_what_is_there]
)
def test_every_module(rule: Callable[[Path], str | None]) -> None:
    assert {name: found for name, path in zip(NAMES, MODULES, strict=True) if (found := rule(path))} == {}


def defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def uses(tree: ast.Module, pattern: str) -> list[int]:
    """Lines on which a name, attribute or call reads like `pattern`."""
    kinds = (ast.Name, ast.Attribute, ast.Call)
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, kinds) and re.fullmatch(pattern, ast.unparse(node), re.DOTALL)
    ]


@pytest.mark.parametrize(
    ("words", "pattern", "allowed"),
    [
        # sys.stdout.fileno() of workers/doctor.py is where its facts go, to a parent that reads them.
        (
            r"stdout|print|echo",
            r"sys\.stdout|print|click\.(?!echo\(.*err=True).*echo.*\(.*",
            {"drkernel_q/cli/output.py", "drkernel_q/cli/__init__.py", "workers/doctor.py"},
        ),
        (r"environ|getenv", r"os\.(environ\.get|getenv)", {"drkernel_q/settings.py"}),
    ],
    ids=["stdout", "environment"],
)
def test_only_one_place_in_the_core(words: str, pattern: str, allowed: set[str]) -> None:
    """Stdout has one writer and the environment one reader, in what is not a worker's own process.

    A module without one of the `words` cannot have the `pattern`, and is not searched for it.
    """
    found = {
        name: lines
        for name, path in zip(NAMES, MODULES, strict=True)
        if name not in allowed and not name.startswith("workers/")
        if re.search(words, path.read_text(encoding="utf-8")) and (lines := uses(parse(path), pattern))
    }
    assert found == {}


#: Text that only one machine, one place to download from, or one place to publish to has.
FOREIGN = {
    "a home folder": re.compile(r"(?<![\w.<{$])/(?:home|Users)/\w+|(?<![\w}])/root/\w"),
    "a package registry": re.compile(
        r"pypi\.org|files\.pythonhosted|download\.pytorch|registry\.npmjs|ghcr\.io|docker\.io|quay\.io|nvcr\.io"
    ),
}
SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".mako", ".txt", ".cfg", ""}


def text_files() -> Iterator[Path]:
    """Files of the checkout that people write, without environments, caches and whatever else is hidden."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") or name == ".ci"]
        paths = (Path(folder) / name for name in names if not name.startswith("."))
        yield from (path for path in paths if path.suffix in SUFFIXES and path != Path(__file__))


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names_a_place_that_others_do_not_have(what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in text_files()
        for match in FOREIGN[what].finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []
