"""The message that drkq writes is the message that Celery and kombu would publish."""

import base64
import json
from typing import Any

import pytest

from drkernel_q.queue.app import EVALUATE, celery_app, limits
from drkernel_q.queue.message import list_keys, message
from drkernel_q.queue.turns import LANES, list_name
from drkernel_q.request import Priority
from tests.queue.conftest import Broker
from tests.queue.requests import echo_request

pytestmark = pytest.mark.redis


def _decoded(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    document["body"] = json.loads(base64.b64decode(document["body"]))
    return document


def test_our_message_is_what_kombu_publishes(broker: Broker) -> None:
    app = celery_app(broker.url)
    request = echo_request("x", deadline_s=100).model_copy(update={"priority": Priority.TRAINING})
    limit = limits(100)
    with app.connection_for_write() as connection:
        app.send_task(
            EVALUATE,
            args=(request.model_dump(mode="json", round_trip=True),),
            task_id=request.id,
            queue=list_name("eval.cpu", Priority.TRAINING, 3),
            soft_time_limit=limit.soft_s,
            time_limit=limit.hard_s,
            ignore_result=True,
            argsrepr=f"({request.id!r},)",
            kwargsrepr="{}",
            connection=connection,
        )
    ours = message(app, EVALUATE, request, list_name=list_name("eval.cpu", Priority.TRAINING, 3))
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


def test_every_list_of_a_queue_is_named() -> None:
    names = [list_name("eval.cpu", priority, lane) for priority in Priority for lane in range(LANES)]
    assert list_keys("eval.cpu") == [f"drkq:{name}" for name in names]
    assert names[0] == "eval.cpu/interactive/0"
    made = message(celery_app("redis://localhost"), EVALUATE, echo_request(), list_name=names[0])
    assert (made.key, made.queue) == (f"drkq:{names[0]}", "eval.cpu")
