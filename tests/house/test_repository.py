"""The repository itself: layers, style, versions, links, and what the wheel holds."""

import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import drkernel_q
from tests.need import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPTS = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_point_down() -> None:
    run(SCRIPTS / "lint-imports", "--no-cache")


@pytest.mark.parametrize("what", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff_has_nothing_to_say(what: list[str]) -> None:
    run(SCRIPTS / "ruff", *what)


def test_version_is_the_same_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert drkernel_q.__version__ == version
    changelog = (ROOT / "CHANGELOG.md").read_text()
    latest = re.search(r"^## \[(.+?)\] - (unreleased|\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert latest
    assert latest[1] == version


def test_licence_is_the_one_that_is_declared() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def test_ci_can_run_its_script() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {link}"
        for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for link in re.findall(r"\]\((?!https?://|mailto:|#)([^)#\s]+)", document.read_text())
        if not (document.parent / link).exists()
    ]
    assert broken == []


def test_every_page_is_listed() -> None:
    folder = ROOT / "docs"
    index = (folder / "index.md").read_text()
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))
    assert [page for page in pages if f"({page})" not in index] == ["index.md"]


def test_decisions_are_numbered_without_a_gap() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [path.name[:4] for path in decisions] == [f"{number:04}" for number in range(1, len(decisions) + 1)]


#: What belongs to a checkout and not to the repository; read from .gitignore, since CI may have no git.
IGNORED = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]


def test_wheel_holds_the_packages_the_migrations_and_the_problems(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", *IGNORED))
    build = "from hatchling.build import build_wheel; print(build_wheel('.'))"
    run(sys.executable, "-c", build, cwd=copy)
    with zipfile.ZipFile(next(copy.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    code = [path for name in ("drkernel_q", "workers", "policy") for path in (copy / name).rglob("*")]
    wanted = {path.relative_to(copy).as_posix() for path in code if path.is_file()}
    wanted |= {
        f"drkernel_q/{path.relative_to(copy).as_posix()}" for path in (copy / "migrations").rglob("*") if path.is_file()
    }
    assert wanted - names == set()
    assert {"drkernel_q/py.typed", "drkernel_q/migrations/env.py"} <= names
    assert any(re.fullmatch(r"drkernel_q/problems/.+\.py", name) for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
