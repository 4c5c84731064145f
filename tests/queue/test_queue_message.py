"""The message that drkq writes is the message that Celery and kombu would publish."""

import base64
import json
from typing import Any

import pytest

from drkernel_q.queue.app import EVALUATE, celery_app, limits
from drkernel_q.queue.message import list_key, message
from tests.queue.conftest import Broker
from tests.queue.requests import echo_request

pytestmark = pytest.mark.redis


def _decoded(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    document["body"] = json.loads(base64.b64decode(document["body"]))
    return document


@pytest.mark.parametrize("priority", [0, 1, 3, 5, 9])
def test_our_message_is_what_kombu_publishes(broker: Broker, priority: int) -> None:
    app = celery_app(broker.url)
    request = echo_request("x", deadline_s=100)
    limit = limits(100)
    with app.connection_for_write() as connection:
        app.send_task(
            EVALUATE,
            args=(request.model_dump(mode="json", round_trip=True),),
            task_id=request.id,
            queue="eval.cpu",
            priority=priority,
            soft_time_limit=limit.soft_s,
            time_limit=limit.hard_s,
            ignore_result=True,
            argsrepr=f"({request.id!r},)",
            kwargsrepr="{}",
            connection=connection,
        )
    ours = message(app, EVALUATE, request, queue="eval.cpu", priority=priority)
    with broker.client() as client:
        text = client.rpop(ours.key)
    assert isinstance(text, str), "kombu pushed on another list"
    theirs = _decoded(text)
    mine = _decoded(ours.text)
    # Each message has a tag of its own, and a result backend's address that nobody uses.
    for properties in (theirs["properties"], mine["properties"]):
        assert len(properties.pop("delivery_tag")) == 36
        properties.pop("reply_to")
    # `send_task` leaks these two arguments into the properties, where nobody reads them.
    assert theirs["properties"].pop("argsrepr") == mine["headers"]["argsrepr"]
    assert theirs["properties"].pop("kwargsrepr") == mine["headers"]["kwargsrepr"]
    assert mine == theirs


def test_priorities_between_the_steps_share_a_list() -> None:
    assert list_key("eval.cpu", 0) == "drkq:eval.cpu" == list_key("eval.cpu", 2)
    assert list_key("eval.cpu", 3) == list_key("eval.cpu", 5) == "drkq:eval.cpu\x06\x163"
    assert list_key("eval.cpu", 9) == "drkq:eval.cpu\x06\x169"
