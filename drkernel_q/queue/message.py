"""The message of one request, as Celery and kombu would write it to Redis, without a connection of theirs.

Celery has no asyncio client, so drkq pushes its own messages. The envelope is kombu's own business and may
change with a release: `tests/queue/test_queue_message.py` compares it with what kombu publishes.
"""

import base64
import uuid
from typing import NamedTuple

from celery import Celery
from kombu.serialization import dumps
from kombu.utils.json import dumps as dump_json

from drkernel_q.queue import keys
from drkernel_q.queue.app import limits
from drkernel_q.queue.turns import list_names, queue_of
from drkernel_q.request import Request


class Message(NamedTuple):
    """A message and the Redis list to push it on."""

    key: str
    text: str

    @property
    def queue(self) -> str:
        """The queue that the list belongs to."""
        return queue_of(self.key.removeprefix(keys.PREFIX))


def list_keys(queue: str) -> list[str]:
    """All Redis lists of a queue."""
    return [keys.PREFIX + name for name in list_names([queue])]


def message(app: Celery, task: str, request: Request, *, list_name: str) -> Message:
    """Write the message that makes whoever takes from a list (`drkernel_q.queue.turns`) run `task` on the request."""
    limit = limits(request.deadline_s)
    task_message = app.amqp.as_task_v2(
        request.id,
        task,
        args=(request.model_dump(mode="json", round_trip=True),),
        soft_time_limit=limit.soft_s,
        time_limit=limit.hard_s,
        ignore_result=True,
        # The whole kernel and problem would be written a second time, for logs that never show them.
        argsrepr=f"({request.id!r},)",
        kwargsrepr="{}",
    )
    content_type, content_encoding, body = dumps(task_message.body, "json")  # type: ignore[no-untyped-call]
    envelope = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": content_encoding,
        "content-type": content_type,
        "headers": task_message.headers,
        "properties": {
            **task_message.properties,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": list_name},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
        },
    }
    return Message(keys.PREFIX + list_name, dump_json(envelope))  # type: ignore[no-untyped-call]
