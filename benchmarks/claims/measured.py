"""Kernels of a list, measured through the queue, and what was found as a file of facts; most wanted first."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.through_queue import replies
from drkernel_q.cli.output import say
from drkernel_q.evaluation import EvaluationRequest, Protocol
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.request import Priority
from drkernel_q.settings import Settings
from drkernel_q.store import Store
from drkernel_q.store.export import write_file
from drkernel_q.value import content_hash

RUN = "claims"
#: Seconds between two files of facts; the store has each at once.
EVERY_S = 30.0
#: What makes a fact one of a request: problem, kernel, protocol.
Key = tuple[str, str, str]


async def measure(
    rows: Sequence[dict[str, Any]],
    target: Path,
    settings: Settings,
    in_flight: int,
    seconds: float,
    protocol: Protocol,
    known: Iterable[Path] = (),
) -> dict[str, Any]:
    """Judge what neither `target`'s store nor the files of `known` have facts of, for so long, and write `target`."""
    began = time.monotonic()
    with Store.open(settings.store) as store:
        store.upgrade()
        write_file(store, "facts", "parquet", target)  # of an earlier call, which may not have come to it
        there = {key for file in (target, *known) for key in keys(file)}
        asked = {each.id: each for each in (request(row, protocol, settings.device) for row in rows)}
        todo = {id_: each for id_, each in asked.items() if key_of(each) not in there}
        say(f"{len(asked)} kernels, {len(asked) - len(todo)} of them known")
        counts: Counter[str] = Counter()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _judge(todo, store, target, settings, in_flight, counts)
        write_file(store, "facts", "parquet", target)
    wall_s = time.monotonic() - began
    found = {"stage": "evaluate", "device": settings.device, "known": len(asked) - len(todo), "left": len(todo)}
    found |= {"left": len(todo) - counts.total(), "kernels": counts.total(), "outcomes": dict(counts)}
    size = {"file_bytes": target.stat().st_size, "wall_s": round(wall_s, 1)}
    return found | size | {"a_minute": round(60 * counts.total() / wall_s, 1)}


async def _judge(
    todo: dict[str, EvaluationRequest],
    store: Store,
    target: Path,
    settings: Settings,
    in_flight: int,
    counts: Counter[str],
) -> None:
    began = written = time.monotonic()
    async for reply in replies(todo.values(), settings, store, in_flight=in_flight):
        found = reply.evaluation
        counts[f"{found.outcome}/{found.integrity}" if found else "not judged"] += 1
        if time.monotonic() - written > EVERY_S:
            write_file(store, "facts", "parquet", target)
            written = time.monotonic()
            say(f"{counts.total()} of {len(todo)} after {written - began:.0f} s")


def keys(file: Path) -> Iterator[Key]:
    """Say of what a file holds facts."""
    columns = ["problem_hash", "kernel_hash", "protocol"]
    for row in pq.read_table(file, columns=columns).to_pylist():
        yield row["problem_hash"], row["kernel_hash"], _same(Protocol.model_validate_json(row["protocol"]))


def key_of(asked: EvaluationRequest) -> Key:
    """Say of what a request asks for facts."""
    return asked.problem.hash, asked.kernel.hash, _same(asked.protocol)


def _same(protocol: Protocol) -> str:
    return protocol.model_dump_json()


def request(row: dict[str, Any], protocol: Protocol, device: str) -> EvaluationRequest:
    """Ask about the kernel of a row; the same row is the same request."""
    problem = Problem(name=row["problem"], source=row["problem_source"])
    kernel = Kernel(source=row["kernel_source"], name=f"{row['quality'] or 'written'}.py")
    name = content_hash(RUN, problem.hash, kernel.hash, device, protocol.model_dump_json())
    return EvaluationRequest(
        id=name.partition(":")[2][:32],
        problem=problem,
        kernel=kernel,
        protocol=protocol,
        priority=Priority.BACKFILL,
        run=RUN,
        submitted_at="2026-01-01T00:00:00+00:00",
    )
