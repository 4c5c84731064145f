"""Requests judged through the queue on one device, each reply stored before it is given."""

from collections.abc import AsyncIterator, Iterable

from drkernel_q.cli.output import say
from drkernel_q.evaluation import EvaluationRequest, Reply
from drkernel_q.local import join
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.settings import Settings
from drkernel_q.store import Store


async def replies(
    requests: Iterable[EvaluationRequest], settings: Settings, store: Store, *, in_flight: int
) -> AsyncIterator[Reply]:
    """Have requests judged on the device of the settings, at most `in_flight` at a time; replies come when they do.

    What the store knows already is not judged again.
    """
    asked = {request.id: request for request in requests}
    with join(settings, [settings.device], say) as url:
        async with EvaluationQueue(url, archive=store) as queue:
            async for reply in queue.evaluate_many(asked.values(), in_flight=in_flight, device=settings.device):
                store.record(asked[reply.id], reply)
                yield reply
