"""`drkq serve`: the gateway."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from drkernel_q.gateway.access import Tokens
    from drkernel_q.gateway.limits import Limits
    from drkernel_q.settings import Settings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="Port; 0 is any free one.")
@click.option(
    "--tokens",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Who may do what: NAME TOKEN [RIGHTS] a line (also: DRKQ_GATEWAY_TOKENS).",
)
@click.option("--device", metavar="DEVICE", help="Device of this machine to start a worker for (also: DRKQ_DEVICE).")
@click.option("--limit", "limits", multiple=True, metavar="NAME=NUMBER", help="Change a bound, such as waiting=20000.")
def command(host: str, port: int, tokens: Path | None, device: str | None, limits: tuple[str, ...]) -> None:
    """Serve evaluations, runs and a live page over HTTP.

    Without a broker URL the gateway starts the broker and a worker of this machine, as every command does. Without
    tokens it listens on this machine alone. TLS is the work of a proxy in front of it. How to submit, wait and follow,
    and what is bounded, is in docs/how-to/serve.md.

    \b
    Examples:
      drkq serve
      drkq serve --host 0.0.0.0 --tokens tokens.txt
      curl -s localhost:8765/readyz

    \b
    Exit codes:
      0 ended by SIGTERM or Ctrl-C   69 no broker, worker or store   78 a setting is wrong
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.gateway.access import check_host
    from drkernel_q.gateway.limits import read_limits
    from drkernel_q.settings import load_settings

    settings = load_settings(device=device, gateway_tokens=tokens)
    known, bounds = _tokens(settings), read_limits(limits)
    check_host(host, known)
    _serve(settings, known, bounds, host, port)


def _serve(settings: "Settings", tokens: "Tokens | None", limits: "Limits", host: str, port: int) -> None:
    """Serve until the end; imports what takes long only when everything that was asked for makes sense."""
    try:
        from drkernel_q.gateway.app import create_app
        from drkernel_q.gateway.server import serve
    except ModuleNotFoundError as error:
        from drkernel_q.errors import MissingExtra

        raise MissingExtra(f"`drkq serve` needs {error.name}; add it with `pip install 'drkq[gateway]'`.") from error
    from drkernel_q.cli.output import progress, say
    from drkernel_q.journal import keep_journal
    from drkernel_q.local import join
    from drkernel_q.store import Store

    keep_journal()
    with (
        progress("Starting") as tell,
        join(settings, [settings.device], tell) as url,
        Store.open(settings.store) as store,
    ):
        store.check()
        app = create_app(settings, url, store, tokens=tokens, limits=limits)
        serve(app, host, port, limits, lambda where: say(f"Serving on {where}."))


def _tokens(settings: "Settings") -> "Tokens | None":
    from drkernel_q.errors import BadSettings
    from drkernel_q.gateway.access import Tokens

    if settings.gateway_tokens is not None and settings.gateway_token is not None:
        raise BadSettings("Set `gateway_tokens` or `gateway_token`, not both.")
    if settings.gateway_tokens is not None:
        return Tokens.read(settings.gateway_tokens)
    if settings.gateway_token is not None:
        return Tokens.single(settings.gateway_token.get_secret_value())
    return None
