"""`drkq up`, `drkq down` and `drkq status`: the broker and the workers that commands of this machine use."""

import shlex
from pathlib import Path
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
@click.option(
    "--compose", "in_containers", is_flag=True, help="Start the services of ./compose.yaml by docker instead."
)
@click.option("--profile", "profiles", multiple=True, metavar="NAME", help="A further profile of compose.yaml: train.")
def up(devices: tuple[str, ...], in_containers: bool, profiles: tuple[str, ...]) -> None:
    """Start the broker and the workers of this machine, and keep them running.

    Without it, each command starts what it needs and stops it at its end; with it, the next commands begin at once.
    With --compose they are containers, beside PostgreSQL and a persister; passwords are made at the first time.

    \b
    Examples:
      drkq up
      drkq up --device cuda:0 --device cuda:1
      drkq up --compose
      drkq up --compose --device cuda:0 --profile train
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q import local

    if in_containers:
        _compose_up(devices, profiles)
        return
    if profiles:
        raise click.UsageError("--profile goes with --compose.")
    settings = _own_machine()
    with progress("Starting") as tell:
        found = local.keep(settings, devices or (settings.device,), tell)
    cards = _workers(found.url)
    say(f"Running: {', '.join(dict.fromkeys(card.device for card in cards))}. Stop with `drkq down`.")


@click.command()
@click.option("--compose", "in_containers", is_flag=True, help="Stop the services of ./compose.yaml; volumes stay.")
def down(in_containers: bool) -> None:
    """Stop the broker and the workers of this machine; what they were doing is given up.

    \b
    Examples:
      drkq down
      drkq down --compose
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q import local
    from drkernel_q.local import compose

    if in_containers:
        compose.find(Path.cwd())
        _run_docker([*compose.COMMAND, "--profile", "*", "down"])
        return
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


def _compose_up(devices: tuple[str, ...], profiles: tuple[str, ...]) -> None:
    from drkernel_q.local import compose
    from drkernel_q.local.process import resolve_devices
    from drkernel_q.settings import load_settings

    folder = compose.find(Path.cwd())
    chosen = [*map(compose.profile, resolve_devices(list(devices or (load_settings().device,)))), *profiles]
    made = compose.make_secrets(folder)
    if made:
        say(f"Made {', '.join(made)} in {compose.SECRETS}/; keep that folder.")
    _run_docker(compose.up(chosen))


def _run_docker(command: list[str]) -> None:
    """Say what is run, and run it."""
    from drkernel_q.local import compose

    say(f"$ {shlex.join(command)}")
    compose.run(command)


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
