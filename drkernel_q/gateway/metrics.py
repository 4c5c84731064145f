"""Metrics for Prometheus: what the gateway does, what waits, how devices are, and what the whole cluster finds out.

Outcomes, failures and times of stages are counted from the store, so they are those of every client and not only of
this gateway's; they begin with 0 when the gateway starts.
"""

import asyncio
import collections
import logging
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client import Counter as Total
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from drkernel_q.errors import DrkqError
from drkernel_q.evaluation import Reply
from drkernel_q.gateway.counter import Counter
from drkernel_q.gateway.submission import Submission
from drkernel_q.queue.registry import WorkerCard, WorkerState
from drkernel_q.store import Store
from drkernel_q.store.news import News, latest, since

log = logging.getLogger(__name__)
#: Seconds; an evaluation takes from a tenth of one to an hour.
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
#: Names of stages are the workers'; more than this many are not theirs.
MOST_STAGES = 32
_STAGE = re.compile(r"[a-z0-9_]{1,40}")
#: Rows of the store that are read in one look.
CHUNK = 500
#: Looks for one scrape; what is left is counted at the next one.
MOST_CHUNKS = 20


class _Snapshot(NamedTuple):
    """What is true at the time of a look."""

    gauges: tuple[tuple[str, str, float], ...]
    """Name, what it is, value."""
    waiting: dict[str, int]
    queues: dict[str, int]
    cards: Sequence[WorkerCard]


class Metrics(Collector):
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        """Begin with zeros."""
        self.registry = CollectorRegistry()
        self._requests = Total(
            "drkq_http_requests", "Requests by route and code.", ["method", "route", "code"], registry=self.registry
        )
        self._request_s = Histogram(
            "drkq_http_request_seconds",
            "Time to the end of the answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._replies = Total(
            "drkq_gateway_replies", "Replies to orders of this gateway.", ["result", "cached"], registry=self.registry
        )
        self._reply_s = Histogram(
            "drkq_gateway_reply_seconds", "From an order to its reply.", buckets=_BUCKETS, registry=self.registry
        )
        self._outcomes = Total(
            "drkq_evaluations",
            "Evaluations of every client.",
            ["outcome", "integrity", "device_kind"],
            registry=self.registry,
        )
        self._failures = Total(
            "drkq_failures", "Attempts without an evaluation, of every client.", ["kind"], registry=self.registry
        )
        self._stage_s = Histogram(
            "drkq_stage_seconds",
            "Time of a stage of an evaluation.",
            ["stage"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self._stages: set[str] = set()
        self._news: News | None = None
        self._snapshot = _Snapshot((), {}, {}, ())
        self._looking = asyncio.Lock()
        self.registry.register(self)

    def requested(self, scope: Scope, code: int, seconds: float) -> None:
        """Count a request that was answered."""
        route = getattr(scope.get("route"), "path", "other")
        self._requests.labels(scope["method"] if route != "other" else "other", route, str(code)).inc()
        self._request_s.labels(route).observe(seconds)

    def replied(self, reply: Reply, seconds: float) -> None:
        """Count a reply to an order of this gateway's."""
        result = reply.failure.kind if reply.failure is not None else "evaluation"
        self._replies.labels(result, str(reply.cached).lower()).inc()
        self._reply_s.observe(seconds)

    async def text(self, counter: Counter, store: Store | None) -> bytes:
        """Look at everything, and write it down as Prometheus reads it."""
        async with self._looking:
            self._snapshot = await _look(counter)
            if store is not None:
                await self._read(store)
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; called by the registry."""
        found = self._snapshot
        for name, what, value in found.gauges:
            yield GaugeMetricFamily(name, what, value)
        waiting = GaugeMetricFamily("drkq_gateway_waiting", "Orders that wait in the gateway.", labels=["priority"])
        for priority, number in found.waiting.items():
            waiting.add_metric([priority], number)
        queues = GaugeMetricFamily("drkq_queue_depth", "Requests that wait in the broker.", labels=["queue"])
        for queue, number in found.queues.items():
            queues.add_metric([queue], number)
        devices = GaugeMetricFamily(
            "drkq_device_state", "Lanes of a device in each state.", labels=["host", "device", "kind", "state"]
        )
        lanes = collections.Counter((card.host, card.device, card.device_kind, card.state) for card in found.cards)
        for host, device, kind in sorted({name[:3] for name in lanes}):
            for state in WorkerState:
                devices.add_metric([host, device, kind, state.value], lanes[host, device, kind, state])
        yield from (waiting, queues, devices)

    async def _read(self, store: Store) -> None:
        """Count what is new in the store; one that is away is asked again the next time."""
        try:
            for _ in range(MOST_CHUNKS):
                news = await asyncio.to_thread(self._ask, store)
                self._count(news)
                self._news = news
                if len(news.judged) < CHUNK and len(news.failures) < CHUNK:
                    return
        except DrkqError as error:
            log.warning("The store cannot be asked: %s", error)

    def _ask(self, store: Store) -> News:
        with store.reading() as connection:
            return latest(connection) if self._news is None else since(connection, self._news, CHUNK)

    def _count(self, news: News) -> None:
        for judged in news.judged:
            self._outcomes.labels(judged.outcome, judged.integrity, judged.device_kind).inc()
            for stage, seconds in judged.durations_s.items():
                if self._is_stage(stage):
                    self._stage_s.labels(stage).observe(seconds)
        for kind in news.failures:
            self._failures.labels(kind).inc()

    def _is_stage(self, name: str) -> bool:
        if name not in self._stages and len(self._stages) < MOST_STAGES and _STAGE.fullmatch(name):
            self._stages.add(name)
        return name in self._stages


async def _look(counter: Counter) -> _Snapshot:
    gauges = (
        ("drkq_gateway_in_flight", "Orders of this gateway in the broker.", counter.in_flight),
        ("drkq_gateway_open", "Orders without a reply.", counter.open.total()),
        ("drkq_gateway_clients", "Clients that have orders without a reply.", len(counter.open)),
        ("drkq_gateway_waiting_bytes", "Bytes of the orders without a reply.", counter.waiting_bytes),
        ("drkq_gateway_kept_bytes", "Bytes of the replies that are kept.", counter.kept_bytes),
    )
    up, cards, queues = 1, await _cards(counter), dict[str, int]()
    try:
        for queue in sorted({queue for card in cards or () for queue in card.queues if queue.startswith("eval.")}):
            queues[queue] = await counter.depth(queue)
    except DrkqError:
        up = 0
    if cards is None:
        up = 0
    broker = ("drkq_broker_up", "Whether the broker answers.", up)
    return _Snapshot((*gauges, broker), counter.line.waiting(), queues, cards or ())


async def _cards(counter: Counter) -> Sequence[WorkerCard] | None:
    try:
        return await counter.cards()
    except DrkqError:
        return None


def replied(metrics: Metrics, submission: Submission, reply: Reply) -> None:
    """Hear of a reply, count it, and say so in the log."""
    seconds = submission.age_s
    metrics.replied(reply, seconds)
    evaluation = reply.evaluation
    log.info(
        "%s has its reply",
        submission.id,
        extra={
            "action": "replied",
            "evaluation": submission.id,
            "client": submission.client,
            "worker": reply.worker,
            "outcome": evaluation.outcome.value if evaluation else None,
            "failure": reply.failure.kind if reply.failure else None,
            "duration_s": round(seconds, 3),
        },
    )
