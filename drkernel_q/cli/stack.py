"""`drkq up`, `drkq down` and `drkq status`: the broker and the workers that commands of this machine use."""

from typing import TYPE_CHECKING, Any

import click

from drkernel_q.cli.output import emit_json, emit_table, emit_text, progress, say
from drkernel_q.errors import BadSettings

if TYPE_CHECKING:
    from drkernel_q.local import StackStatus
    from drkernel_q.queue.registry import WorkerCard
    from drkernel_q.settings import Settings

_IDLE_QUEUES = ("eval.cuda", "eval.cpu")


@click.command()
@click.option(
    "--device", "devices", multiple=True, metavar="DEVICE", help="auto, cpu or cuda:N; may be given several times."
)
def up(devices: tuple[str, ...]) -> None:
    """Start the broker and the workers of this machine, and keep them running.

    Without it, each command starts what it needs and stops it at its end; with it, the next commands begin at once.

    \b
    Examples:
      drkq up
      drkq up --device cuda:0 --device cuda:1
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q import local

    settings = _own_machine()
    with progress("Starting") as tell:
        found = local.keep(settings, devices or (settings.device,), tell)
    cards = _workers(found.url)
    say(f"Running: {', '.join(card.device for card in cards)}. Stop with `drkq down`.")


@click.command()
def down() -> None:
    """Stop the broker and the workers of this machine; what they were doing is given up.

    \b
    Example:
      drkq down
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q import local

    with progress("Stopping"):
        stopped = local.stop(_own_machine())
    say("Stopped." if stopped else "Nothing was running.")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
def status(as_json: bool) -> None:
    """Show the broker, the workers and what they are at, what waits, and the store.

    \b
    Examples:
      drkq status
      drkq status --json | jq '.workers[] | {device, state, request_id}'
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.settings import load_settings

    found = describe(load_settings())
    if as_json:
        emit_json(found)
        return
    for part in ("broker", "store"):
        emit_text(f"{part:8}{found[part] or 'none runs; commands start one, or `drkq up`'}")
    if found["broker"]:
        emit_text(f"waiting {sum(found['waiting'].values())}")
    if found["workers"]:
        emit_text("")
        emit_table(
            ("worker", "host", "state", "evaluation", "since", "versions"),
            [_row(card) for card in found["workers"]],
        )
    for line in _out_of_service(found):
        emit_text("")
        emit_text(line)


def describe(settings: "Settings") -> dict[str, Any]:
    """Describe what runs, as `drkq status --json` shows it.

    Raises:
        NoBroker: a broker is named, and does not answer.
    """
    from drkernel_q import quarantine
    from drkernel_q.store import engine

    stack = running_stack(settings)
    url = broker_url(settings, stack)
    cards = _workers(url) if url else []
    store = engine.parse(settings.store)  # not opened: looking at things makes none
    return {
        "broker": _public_broker(settings, stack),
        "stack": stack.model_dump(mode="json", exclude={"url"}) if stack else None,
        "workers": [card.model_dump(mode="json") for card in cards],
        "quarantined": [
            each.model_dump(mode="json") | {"remedy": each.remedy} for each in quarantine.find_all(settings.state_dir)
        ],
        "waiting": _waiting(url, cards) if url else {},
        "store": str(engine.sqlite_file(store) or engine.public(store)),
    }


def running_stack(settings: "Settings") -> "StackStatus | None":
    """Ask this machine's stack about itself; None when none runs, or a cluster is used."""
    from drkernel_q import local

    return local.status(settings) if settings.broker_url is None else None


def broker_url(settings: "Settings", stack: "StackStatus | None") -> str | None:
    """Choose the broker: the cluster's, else the running stack's; holds the password."""
    if settings.broker_url is not None:
        return settings.broker_url.get_secret_value()
    return stack.url if stack else None


def _own_machine() -> "Settings":
    """Load the settings of a machine that has a stack of its own."""
    from drkernel_q.settings import load_settings

    settings = load_settings()
    if settings.broker_url is not None:
        raise BadSettings(
            "The setting `broker_url` names a cluster's broker, so there is nothing of this machine to start or stop; "
            "start workers with `drkq worker`."
        )
    return settings


def _public_broker(settings: "Settings", stack: "StackStatus | None") -> str | None:
    if settings.broker_url is None:
        return stack.broker if stack else None
    scheme, _, rest = settings.broker_url.get_secret_value().partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _workers(url: str) -> "list[WorkerCard]":
    from redis import RedisError

    from drkernel_q.errors import NoBroker
    from drkernel_q.queue.connection import connect
    from drkernel_q.queue.registry import workers

    try:
        with connect(url, retries=0) as redis:
            return workers(redis)
    except RedisError as error:
        raise NoBroker("The broker does not answer; check DRKQ_BROKER_URL.") from error


def _waiting(url: str, cards: "list[WorkerCard]") -> dict[str, int]:
    """Count the messages of each queue that no worker has taken yet."""
    from drkernel_q.queue.connection import connect
    from drkernel_q.queue.message import list_keys

    queues = sorted({*_IDLE_QUEUES, *(queue for card in cards for queue in card.queues)})
    with connect(url, retries=0) as redis:
        return {queue: sum(int(redis.llen(key)) for key in list_keys(queue)) for queue in queues}


def _out_of_service(found: dict[str, Any]) -> list[str]:
    """Say of each quarantined device why, those of this machine with the remedy."""
    here = [
        f"{each['device']} of {each['host']} is quarantined since {each['since']}: {each['reason']} {each['remedy']}"
        for each in found["quarantined"]
    ]
    known = {(each["device"], each["host"]) for each in found["quarantined"]}
    elsewhere = [
        f"{card['device']} of {card['host']} is quarantined since {card['started_at']}: {card['reason']}"
        for card in found["workers"]
        if card["state"] == "quarantined" and (card["device"], card["host"]) not in known
    ]
    return here + elsewhere


def _row(card: dict[str, Any]) -> tuple[object, ...]:
    versions = " ".join(f"{name} {version}" for name, version in card["versions"].items() if version)
    return card["device"], card["host"], card["state"], card["request_id"], card["last_progress"], versions
