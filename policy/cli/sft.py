"""`drkq sft`: supervised fine-tuning."""

from pathlib import Path
from typing import Any

import click

from drkernel_q.cli.output import emit_json, emit_table, emit_text, progress

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--model", metavar="MODEL", help="What to start from: a folder, a GGUF file, or a name of the hub.")
@click.option("--data", "files", multiple=True, metavar="PATH", help="Conversations (`messages`); may be given again.")
@click.option("--validation", multiple=True, metavar="PATH", help="Conversations to validate on.")
@click.option("--out", "folder", metavar="DIR", type=_PATH, help="Folder of the run; the model is DIR/model.")
@click.option("--preset", metavar="NAME", help="tiny, small or paper.")
@click.option("--config", "file", metavar="FILE", type=_PATH, help="A TOML file of settings, which win over a preset.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="One setting: data.packing=true.")
@click.option("--epochs", type=float, metavar="N", help="How often each row is seen.")
@click.option("--steps", "max_steps", type=click.IntRange(1), metavar="N", help="Optimizer steps, instead of epochs.")
@click.option("--batch", "batch_size", type=click.IntRange(1), metavar="N", help="Rows of an optimizer step.")
@click.option("--lora", "rank", type=click.IntRange(0), metavar="RANK", help="Rank of adapters; 0 trains all weights.")
@click.option("--device", type=click.Choice(["auto", "cpu"]), help="Where to train (default: auto).")
@click.option("--seed", type=int, metavar="N", help="Seed of the order of rows and of new weights.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in DIR.")
@click.option("--dry-run", is_flag=True, help="Show settings, rows and what is learned of the first; train nothing.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as one JSON document.")
def command(
    folder: Path | None,
    preset: str | None,
    file: Path | None,
    overrides: tuple[str, ...],
    resume: bool,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Fine-tune a model on conversations, so that it writes such answers.

    Only the answers are learned. Conversations are rows with `messages` in JSONL, Parquet or a folder that `datasets`
    saved, such as `drkq db export` writes and the published cold-start data has. Metrics go to DIR/metrics.jsonl and
    TensorBoard; the model in DIR/model is loaded by transformers, vLLM and every drkq command.

    \b
    Examples:
      drkq sft --preset tiny --model models/small --data curriculum.jsonl --out runs/sft
      drkq sft --preset paper --model Qwen/Qwen3-8B --data coldstart.parquet --out runs/cold --dry-run
      drkq sft --preset small --model base.gguf --data turns.jsonl --out runs/lora --lora 32 --set epochs=2
      drkq sft --preset tiny --model models/small --data curriculum.jsonl --out runs/sft --resume

    \b
    Exit codes:
      0 trained   65 bad data or model   78 a setting is wrong   130 stopped by SIGTERM; --resume goes on
    """  # noqa: D301 - click wants the backspace character itself
    from policy.config import load_config
    from policy.sft.config import SftConfig

    config = load_config(SftConfig, "sft", preset, file, overrides, _settings(flags))
    if dry_run:
        _preview(config, as_json=as_json)
        return
    if folder is None:
        raise click.UsageError("Name the folder of the run by --out DIR.")
    from policy.sft.run import run_sft

    with progress(f"loading {config.model}") as tell:
        result = run_sft(config, folder, resume=resume, tell=tell)
    if as_json:
        emit_json(result)
    else:
        emit_text(result.summary)


def _settings(flags: dict[str, Any]) -> dict[str, Any]:
    """Name flags as settings; those that were not given are None."""
    places = {"files": "data.files", "validation": "data.validation", "rank": "lora.rank"}
    return {places.get(name, name): None if value == () else value for name, value in flags.items()}


def _preview(config: Any, *, as_json: bool) -> None:
    from policy.sft.preview import preview

    facts, learned = preview(config)
    if as_json:
        emit_json({"config": config, **facts, "learned_of_the_first_row": learned})
        return
    emit_table(("what", "value"), facts.items())
    emit_text("\nLearned of the first row:")
    emit_text(learned)
