"""Kernels of a list, measured through the queue, and what was found as a file of facts; most wanted first."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drkernel_q.cli.output import say
from drkernel_q.evaluation import EvaluationRequest, Protocol
from drkernel_q.kernel import Kernel
from drkernel_q.local import join
from drkernel_q.problem import Problem
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.request import Priority
from drkernel_q.settings import Settings
from drkernel_q.store import Store
from drkernel_q.store.export import write_file
from drkernel_q.value import content_hash

RUN = "claims"


async def measure(
    rows: list[dict[str, Any]], target: Path, settings: Settings, in_flight: int, seconds: float, protocol: Protocol
) -> dict[str, Any]:
    began = time.monotonic()
    requests = {request.id: request for request in (_request(row, protocol, settings.device) for row in rows)}
    counts: Counter[str] = Counter()

    def in_time() -> Iterator[EvaluationRequest]:
        return (request for request in requests.values() if time.monotonic() - began < seconds)

    with Store.open(settings.store) as store:
        with join(settings, [settings.device], say) as url:
            async with EvaluationQueue(url, archive=store) as queue:
                async for reply in queue.evaluate_many(in_time(), in_flight=in_flight, device=settings.device):
                    store.record(requests[reply.id], reply)
                    found = reply.evaluation
                    counts[f"{found.outcome}/{found.integrity}" if found else "not judged"] += 1
                    if counts.total() % 50 == 0:
                        say(f"{counts.total()} of {len(requests)} after {time.monotonic() - began:.0f} s")
        write_file(store, "facts", "parquet", target)  # those too that were known before
    wall_s = time.monotonic() - began
    found = {"stage": "evaluate", "device": settings.device, "kernels": counts.total(), "outcomes": dict(counts)}
    size = {"file_bytes": target.stat().st_size, "wall_s": round(wall_s, 1)}
    return found | size | {"a_minute": round(60 * counts.total() / wall_s, 1)}


def _request(row: dict[str, Any], protocol: Protocol, device: str) -> EvaluationRequest:
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
