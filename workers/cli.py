"""`drkq worker`: one process bound to one device."""

import socket

import click
from redis import RedisError

from drkernel_q import quarantine
from drkernel_q.cli.output import say
from drkernel_q.errors import NoBroker, NoWorker
from drkernel_q.queue.connection import connect
from drkernel_q.queue.registry import workers
from drkernel_q.settings import Settings, load_settings
from workers.device import find_device
from workers.supervisor import Supervisor


@click.command(short_help="Serve evaluations on one device.")
@click.option("--device", default=None, help="cuda:N, cpu, or cpu:N for a further one. (env: DRKQ_DEVICE)")
@click.option(
    "--clear-quarantine",
    is_flag=True,
    help="Put a quarantined device back into service, and do nothing else; a worker that waits for it goes on.",
)
@click.option(
    "--check", is_flag=True, help="Only say whether a worker of this host serves the device; 69 if none does."
)
@click.option("--broker", "broker_url", default=None, help="Broker URL. (env: DRKQ_BROKER_URL)")
def command(device: str | None, broker_url: str | None, clear_quarantine: bool, check: bool) -> None:
    """Serve evaluations on one device until SIGTERM or Ctrl-C; the evaluation at hand is finished first.

    A device that fails its check again and again is quarantined: nothing runs on it until somebody has looked at it.

    \b
    Examples:
      drkq worker --device cuda:0
      DRKQ_BROKER_URL=redis://host:6379/0 drkq worker --device cpu
      drkq worker --device cuda:0 --clear-quarantine
      drkq worker --device cuda:0 --check
    """  # noqa: D301 - click wants the backspace character itself
    settings = load_settings(device=device, broker_url=broker_url)
    name = settings.device if settings.device != "auto" else "cuda:0"
    if clear_quarantine:
        _clear(settings, name)
    elif check:
        _check(settings, name)
    else:
        Supervisor(settings, name, say).run()


def _clear(settings: Settings, name: str) -> None:
    found = quarantine.clear(settings.state_dir, find_device(name).identity)
    if found is None:
        say(f"{name} was not quarantined.")
    else:
        say(f"{name} is back in service. It was quarantined since {found.since}: {found.reason}")


def _check(settings: Settings, name: str) -> None:
    """Look for the card of the worker; a card expires when nobody refreshes it."""
    with connect(settings, retries=0) as redis:
        try:
            cards = workers(redis)
        except RedisError as error:
            raise NoBroker(f"The broker does not answer: {error}.") from error
    here = socket.gethostname()
    found = next((card for card in cards if (card.host, card.device) == (here, name)), None)
    if found is None:
        raise NoWorker(f"No worker of {here} serves {name}.")
    say(f"The worker on {name} is {found.state}.")
