"""Every test starts from a clean environment, and the header says what it runs on."""

import importlib.metadata
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.need import CI, ROOT, cuda, postgres_program, redis_server, require, vllm_python

pytest_plugins = ["tests.services"]

#: Short, because socket paths are made below it and those may have 107 bytes.
SESSION_DIR = Path(tempfile.mkdtemp(prefix="dq-"))


def _scrub() -> None:
    """Take the user's settings away before anything of ours is imported (paths are resolved at import)."""
    for name in [name for name in os.environ if name.startswith("DRKQ_")]:
        del os.environ[name]
    # Every command that a test starts would compile all that it imports again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for kind in ("CONFIG", "DATA", "CACHE", "STATE"):
        os.environ[f"XDG_{kind}_HOME"] = str(SESSION_DIR / kind.lower())
    os.environ["XDG_RUNTIME_DIR"] = str(SESSION_DIR)
    os.environ["DRKQ_LOCK_DIR"] = str(SESSION_DIR / "locks")
    # What a shell starts in the background ignores these, and so would every process of a test.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # Commands that tests start find the packages of this checkout from any folder, installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


_scrub()

# The cores are shared, so an example's duration says nothing; in CI a failure must come again.
hypothesis.settings.register_profile("drkq", deadline=None, derandomize=CI, max_examples=50)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "drkq"))


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Data, sockets and locks of this test alone; compile caches are shared by the session."""
    folder = Path(tempfile.mkdtemp(dir=SESSION_DIR))
    for kind in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(folder / kind.lower()))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("DRKQ_LOCK_DIR", str(folder / "locks"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def pytest_unconfigure() -> None:
    shutil.rmtree(SESSION_DIR, ignore_errors=True)


def pytest_report_header() -> str:
    found = {name: _version_of_package(name) for name in ("torch", "triton")}
    found["redis-server"] = _version_of_program(redis_server())
    found["postgres"] = _version_of_program(postgres_program("postgres"))
    found["sqlite"] = sqlite3.sqlite_version
    return ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, and skip what needs a GPU or vLLM where there is none, in CI too.

    Processes that share the files of a run end together when the last files are short.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    for marker, found, reason in [("gpu", cuda, "no CUDA device"), ("vllm", vllm_python, "no vLLM")]:
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not found():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("redis"):
        require("redis-server (or valkey-server)", redis_server())
    if item.get_closest_marker("postgres"):
        require("PostgreSQL (initdb, pg_ctl)", postgres_program("initdb") and postgres_program("pg_ctl"))


def _version_of_package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_of_program(path: str | None) -> str | None:
    if path is None:
        return None
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    # "Redis server v=7.0.15 sha=..." and "postgres (PostgreSQL) 15.18 (Debian ...)"
    words = [word.removeprefix("v=") for word in text.split()]
    return next((word for word in words if word[:1].isdigit()), text.strip())
