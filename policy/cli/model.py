"""`drkq model`: make a small policy from nothing, and look at one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from drkernel_q.cli.output import emit_json, emit_table, emit_text

if TYPE_CHECKING:
    from policy.model.shape import Size
    from policy.model.tokenizer import Pieces

_PATH = click.Path(path_type=Path)


@click.group()
def command() -> None:
    """Make a small model without any download, and show what a model is."""


@command.command()
@click.argument("folder", metavar="DIR", type=_PATH)
@click.option(
    "--size",
    type=click.Choice(["tiny", "0.9m", "1.6m", "5m", "20m"]),
    default="5m",
    show_default=True,
    help="Parameters; `tiny` is for trying things out.",
)
@click.option(
    "--texts",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="What the tokenizer is trained on: source, text, or JSONL of `messages`; may be given again.",
)
@click.option("--vocabulary", type=click.IntRange(261), default=2048, show_default=True, help="Tokens to know.")
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(64),
    default=8192,
    show_default=True,
    help="Longest chat, tokens.",
)
@click.option(
    "--pieces",
    type=click.Choice(["words", "lines"]),
    default="words",
    show_default=True,
    help="What a token is at most; `lines` shortens code that repeats its lines, and so the time to learn it.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the weights.")
def new(
    folder: Path,
    size: "Size",
    files: tuple[Path, ...],
    vocabulary: int,
    context_tokens: int,
    pieces: "Pieces",
    seed: int,
) -> None:
    """Make a Qwen3-shaped model with random weights and a tokenizer trained on texts.

    The folder is loaded by transformers and vLLM; the same arguments give the same files.

    \b
    Examples:
      drkq model new models/small --size 5m --texts curriculum.jsonl
      drkq model new models/quick --size 0.9m --pieces lines --texts curriculum.jsonl
    """  # noqa: D301 - click wants the backspace character itself
    from policy.model.model import make_model
    from policy.model.tokenizer import read_texts

    make_model(
        folder,
        size,
        read_texts(files),
        vocabulary=vocabulary,
        context_tokens=context_tokens,
        pieces=pieces,
        seed=seed,
    )
    emit_text(str(folder))


@command.command()
@click.argument("model", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
def show(model: str, as_json: bool) -> None:
    """Show what a model is: a folder, a GGUF file, or a name of the Hugging Face hub.

    \b
    Examples:
      drkq model show models/small
      drkq model show SmolLM2-135M-Instruct.Q4_1.gguf --json | jq .parameters
    """  # noqa: D301 - click wants the backspace character itself
    from policy.model.model import describe_model

    facts = describe_model(model)
    if as_json:
        emit_json(facts)
    else:
        emit_table(("what", "value"), facts.items())
