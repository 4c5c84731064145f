"""The desk: a worker's side of the queue. It takes deliveries, holds their claims, and hands in what the work came to.

It knows nothing of devices: what the work is, is told by `Work`.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

from celery import Celery
from celery.exceptions import Reject, SoftTimeLimitExceeded
from pydantic import TypeAdapter, ValidationError
from redis import Redis, RedisError

from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.environment import Environment
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure, Integrity, Outcome, Reply
from drkernel_q.queue.app import AUDIT, LEASE_S, as_task
from drkernel_q.queue.ledger import MAX_DEATHS, Claim, ClaimState, Ledger, Overdue, Retry
from drkernel_q.queue.message import Message, message
from drkernel_q.queue.registry import workers

log = logging.getLogger(__name__)

AnyRequest = EvaluationRequest | AuditRequest
_REQUEST: TypeAdapter[AnyRequest] = TypeAdapter(AnyRequest)

#: A worker that has passed on a request that is for others leaves the queue alone for so long, more or less by chance:
#: two that pass on in step, each what is for the other, would go on so.
PASS_ON_S = 0.2


class Answer(NamedTuple):
    """What the work on a request came to."""

    facts: Evaluation | Audit | Failure
    artefacts: str | None = None
    """Raw measurements behind an evaluation, packed."""


class Work(Protocol):
    """What a worker does with requests, one at a time."""

    @property
    def lost(self) -> bool:
        """Whether nothing can be done here any more; then requests are for other workers."""

    def environment(self) -> Environment | None:
        """Say where and with what it is done; None before that is known."""

    def busy(self, request_id: str) -> AbstractContextManager[object]:
        """Show that a request is being worked on."""

    def do(self, request: AnyRequest, cancelled: Callable[[], bool]) -> Answer:
        """Work on a request; whatever keeps it from an answer is a `Failure`, too."""


class Desk:
    """The desk of one worker."""

    def __init__(self, app: Celery, redis: Redis, owner: str, rules_version: str, *, lease_s: float = LEASE_S) -> None:
        """Serve as `owner`, who works by these rules; not across a fork."""
        self._app = app
        self._redis = redis
        self._owner = owner
        self._rules_version = rules_version
        self._lease_s = lease_s
        self._ledger = Ledger(redis)
        self._held: Claim | None = None
        threading.Thread(target=self._keep, daemon=True).start()

    def serve(self, task: str, payload: dict[str, Any], list_name: str, work: Work) -> None:
        """Serve one delivery, which came from the list `list_name`.

        Raises:
            Reject: it is no request.
            SystemExit: the worker is told to leave at once; the request is given back.
        """
        kind = AuditRequest if task == AUDIT else EvaluationRequest
        try:
            request = as_task(task, kind.model_validate(payload))
        except ValidationError as error:
            log.error("a request that is none: %s", error)
            raise Reject(str(error), requeue=False) from error
        if work.lost:
            raise Reject("nothing can be done here any more", requeue=True)
        key = self._content_key(request, work.environment())
        claim = self._ledger.claim(request, self._owner, self._lease_s, task=task, list_name=list_name, content_key=key)
        again = partial(message, self._app, task, request, list_name=list_name)
        if claim.state is ClaimState.ELSEWHERE:
            self._redis.lpush(*again())
            time.sleep(PASS_ON_S * random.uniform(0.5, 1.5))  # noqa: S311 - nothing is secret about it
        elif not claim.wants_reply:
            log.info("%s is %s", request.id, claim.state.value)
        else:
            self._conclude(claim, request, work, again)

    def _content_key(self, request: AnyRequest, environment: Environment | None) -> str:
        """Key under which there may be facts already that are good enough."""
        if environment is None or not isinstance(request, EvaluationRequest) or request.fresh:
            return ""
        return request.content_key(environment.conditions(self._rules_version))

    def _conclude(self, claim: Claim, request: AnyRequest, work: Work, again: Callable[[], Message]) -> None:
        """Work on a claimed request and hand in the reply, or have it tried again by the message that `again` makes."""
        try:
            with self._hold(claim), work.busy(request.id):
                reply = claim.known or self._reply(claim, self._answer(claim, request, work))
        except SystemExit:
            self._ledger.release(claim)
            raise
        if (
            reply.failure is not None
            and reply.failure.kind == "infrastructure"
            and self._postpone(claim, request, reply, again())
        ):
            return
        if not self._ledger.finish(claim, request, reply, content_key=_new_key(request, reply)):
            log.warning("%s was taken over by another worker", request.id)

    def _postpone(self, claim: Claim, request: AnyRequest, reply: Reply, again: Message) -> bool:
        """Leave a request that failed for no reason of its own to a later attempt; False when there was the last one.

        An attempt counts also where nothing can be done any more after it: a kernel that makes one device after the
        other fail its check must not go through all of them.
        """
        assert reply.failure is not None
        outcome = self._ledger.retry(claim, request, reply, again, others=self._others_serve(again.queue))
        log.warning("%s failed (%s): %s", request.id, outcome.value, reply.failure.message)
        return outcome is not Retry.SPENT

    def _answer(self, claim: Claim, request: AnyRequest, work: Work) -> Answer:
        if claim.state is ClaimState.CANCELLED:
            return Answer(Failure(kind="cancelled", message="Cancelled before it began."))
        if claim.state is ClaimState.POISONOUS:
            return Answer(_poisonous(request, work.environment()))
        try:
            return work.do(request, partial(self._ledger.is_cancelled, request.id))
        except SoftTimeLimitExceeded:
            return Answer(Failure(kind="deadline", message=f"No answer within {request.deadline_s:g} s, nor after."))

    def _reply(self, claim: Claim, answer: Answer) -> Reply:
        facts = answer.facts
        return Reply(
            id=claim.request_id,
            attempt=claim.attempt,
            worker=self._owner,
            evaluation=facts if isinstance(facts, Evaluation) else None,
            artefacts=answer.artefacts,
            audit=facts if isinstance(facts, Audit) else None,
            failure=facts if isinstance(facts, Failure) else None,
            finished_at=datetime.now(UTC).isoformat(),
        )

    def _others_serve(self, queue: str) -> bool:
        """Whether another live worker takes from the queue."""
        return any(card.id != self._owner and card.accepts and queue in card.queues for card in workers(self._redis))

    @contextmanager
    def _hold(self, claim: Claim) -> Iterator[None]:
        """Have the lease extended while the work goes on."""
        self._held = claim
        try:
            yield
        finally:
            self._held = None

    def _keep(self) -> None:
        """Extend the lease of what is held, each third of one."""
        while True:
            time.sleep(self._lease_s / 3)
            if (claim := self._held) is not None:
                try:
                    self._ledger.extend(claim, self._lease_s)
                except RedisError as error:
                    log.warning("the lease of %s is not extended: %s", claim.request_id, error)


def _new_key(request: AnyRequest, reply: Reply) -> str:
    """Key under which a reply is good for whoever asks later; none if it is not."""
    evaluation = reply.evaluation
    if evaluation is None or not evaluation.lasting or reply.cached or not isinstance(request, EvaluationRequest):
        return ""
    return request.content_key(evaluation.conditions)


def _poisonous(request: AnyRequest, environment: Environment | None) -> Evaluation | Audit | Failure:
    """Say of a request that cost too many workers what that makes of its kernel, or of its problem."""
    text = f"Whatever worked on it was lost, {MAX_DEATHS} times, without a word; it is not tried again."
    if environment is None:
        return Failure(kind="infrastructure", message=text)
    if isinstance(request, AuditRequest):
        return Audit(environment=environment, unusable=text)
    return Evaluation(
        outcome=Outcome.CRASHED,
        integrity=Integrity.UNKNOWN,
        protocol=request.protocol,
        environment=environment,
        error=text,
    )


class Reaper:
    """Delivers again what workers held that are gone; any number may be at it.

    After the first look, and after one that was late, as when the broker was away, nothing is taken from anybody for a
    while: whoever lives has extended its lease by then, which it does each third of one.
    """

    def __init__(self, app: Celery, redis: Redis, *, lease_s: float = LEASE_S) -> None:
        """Look through a connection that nobody else uses meanwhile, several times in a lease."""
        self._app = app
        self._ledger = Ledger(redis)
        self._period_s = self._margin_s = lease_s / 10
        self._truce_s = 0.4 * lease_s
        self._looked_at = float("-inf")
        self._truce_until = 0.0

    def run(self, owner: str, stop: threading.Event) -> None:
        """Look again and again until `stop` is set, as a worker that has just begun."""
        looks: Iterator[Callable[[], object]] = chain(
            [partial(self.inherit, owner)], repeat(lambda: self.look(time.monotonic()))
        )
        for look in looks:
            try:
                look()
            except RedisError as error:
                log.warning("the broker fails: %s", error)
            if stop.wait(self._period_s):
                return

    def look(self, now: float) -> int:
        """Look once, at `now` on a monotonic clock; return how many requests were delivered again."""
        if now - self._looked_at > 2 * self._period_s:
            self._truce_until = now + self._truce_s
        overdue = self._ledger.overdue(self._margin_s)
        self._looked_at = now
        return 0 if now < self._truce_until else sum(self._revive(each, self._margin_s) for each in overdue)

    def inherit(self, owner: str) -> int:
        """Deliver again what this worker held when it ended the last time; return how many requests that were."""
        return sum(self._revive(each, None) for each in self._ledger.left_by(owner))

    def _revive(self, overdue: Overdue, margin_s: float | None) -> bool:
        try:
            request = _REQUEST.validate_json(overdue.request)
        except ValidationError as error:
            log.error("%s was of a worker of another release: %s", overdue.request_id, error)
            self._ledger.forget(overdue.request_id)
            return False
        again = message(self._app, overdue.task, request, list_name=overdue.list_name)
        revived = self._ledger.revive(overdue, again, margin_s)
        if revived:
            log.warning("%s lost its worker and is delivered again", overdue.request_id)
        return revived
