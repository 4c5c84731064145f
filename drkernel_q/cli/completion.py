"""`drkq completion`: what a shell needs to complete drkq's commands and options."""

import click
from click.shell_completion import get_completion_class

from drkernel_q.cli.output import emit_text

#: The variable through which a shell asks the `drkq` program for completions; click derives it from the name.
COMPLETE_VARIABLE = "_DRKQ_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    Examples:
      eval "$(drkq completion bash)"                                  in ~/.bashrc
      eval "$(drkq completion zsh)"                                   in ~/.zshrc
      drkq completion fish > ~/.config/fish/completions/drkq.fish
    """  # noqa: D301 - click wants the backspace character itself
    completion = get_completion_class(shell)
    assert completion is not None, f"click knows no completion for {shell}"
    emit_text(completion(ctx.find_root().command, {}, "drkq", COMPLETE_VARIABLE).source())
