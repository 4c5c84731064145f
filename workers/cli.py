"""`drkq worker`: one process bound to one device."""

import click

from drkernel_q.cli.output import say
from drkernel_q.settings import load_settings
from workers.supervisor import Supervisor


@click.command(short_help="Serve evaluations on one device.")
@click.option("--device", default=None, help="cuda:N, cpu, or cpu:N for a further one. (env: DRKQ_DEVICE)")
@click.option("--broker", "broker_url", default=None, help="Broker URL. (env: DRKQ_BROKER_URL)")
def command(device: str | None, broker_url: str | None) -> None:
    """Serve evaluations on one device until SIGTERM or Ctrl-C; the evaluation at hand is finished first.

    \b
    Examples:
      drkq worker --device cuda:0
      DRKQ_BROKER_URL=redis://host:6379/0 drkq worker --device cpu
    """  # noqa: D301 - click wants the backspace character itself
    settings = load_settings(device=device, broker_url=broker_url)
    name = settings.device if settings.device != "auto" else "cuda:0"
    Supervisor(settings, name, say).run()
