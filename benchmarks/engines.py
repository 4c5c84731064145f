"""One policy through vLLM and through transformers: the same greedy text, tokens a second, and what MRS says.

    PYTHONPATH=. python benchmarks/engines.py --model DIR/sft/model --problems DIR/heldout --device cuda:0

Both engines write a kernel for every problem, once greedily and `--samples` times at `--temperature`, all at once. Then
the trainer's own code computes the log-probabilities of what was sampled again, in float32, and decides about each
completion as MRS would. `--dtype bfloat16` is what the engines compute in; the trainer stays with float32. Without
vLLM only transformers is measured. It prints a table, and one JSON line.
"""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch

from drkernel_q.cli.output import emit_table, say
from drkernel_q.problem import find_problems
from drkernel_q.prompt import load_templates
from drkernel_q.settings import load_settings
from drkernel_q.trajectory import Message
from policy.method.batch import TurnRow, micro_batches
from policy.method.logprob import score
from policy.method.mismatch import LogRatios, decide, log_ratios, telemetry
from policy.model.model import load_model
from policy.rollouts.rollout import next_prompt
from policy.sampler.protocol import Prompt, Sample, Sampler, Sampling
from policy.sampler.transformers import TransformersSampler
from policy.sampler.vllm import VllmSampler

#: Tokens of a micro-batch of the trainer.
BATCH_TOKENS = 65_536
ROWS = {"batch_rows": 512, "batch_tokens": 2**20}


class Written(NamedTuple):
    """What an engine wrote."""

    prompts: list[Prompt]
    greedy: list[Sample]
    """One for each prompt."""
    sampled: list[Sample]
    """`--samples` for each prompt, those of a prompt beside each other."""
    ready_s: float
    """Seconds until it could write."""
    tokens_per_s: float
    """Of the sampled ones, prompts not counted."""


async def write(sampler: Sampler, chats: Sequence[Sequence[Message]], options: dict[str, Any]) -> Written:
    """Have one engine write everything."""
    began = time.monotonic()
    async with sampler:
        ready_s = time.monotonic() - began
        prompts = [sampler.encode(chat) for chat in chats]
        longest, temperature = options["max_new_tokens"], options["temperature"]
        greedy = await _all(sampler, prompts, [Sampling(temperature=0.0, max_new_tokens=longest)] * len(prompts))
        many = [prompt for prompt in prompts for _ in range(options["samples"])]
        drawn = [Sampling(temperature=temperature, max_new_tokens=longest, seed=n) for n in range(len(many))]
        began = time.monotonic()
        sampled = await _all(sampler, many, drawn)
        seconds = time.monotonic() - began
    tokens = sum(len(each.output_ids) for each in sampled)
    return Written(prompts, greedy, sampled, ready_s, tokens / seconds)


async def _all(sampler: Sampler, prompts: Sequence[Prompt], samplings: Sequence[Sampling]) -> list[Sample]:
    return await asyncio.gather(*(sampler.sample(*each) for each in zip(prompts, samplings, strict=True)))


def trained(
    model: Path, prompts: Sequence[Prompt], samples: Sequence[Sample], temperature: float, device: str
) -> list[np.ndarray]:
    """Compute log-probabilities of the samples' tokens as the trainer does, in float32; one array a sample."""
    policy, _ = load_model(model, "float32", device)
    rows = [
        TurnRow(prompt.ids, sample.output_ids, sample.logprobs, advantage=0.0)
        for prompt, sample in zip(prompts, samples, strict=True)
    ]
    found: dict[int, np.ndarray] = {}
    with torch.no_grad():
        for batch in micro_batches(rows, BATCH_TOKENS):
            scores = score(policy, batch.to(device), temperature).logprobs.cpu().numpy()
            for row, logprobs, sampled in zip(batch.rows, scores, batch.sampled.cpu().numpy(), strict=True):
                found[row] = logprobs[sampled]
    return [found[row] for row in range(len(rows))]


def mismatch(mine: Sequence[np.ndarray], samples: Sequence[Sample]) -> dict[str, float]:
    """Say what MRS makes of the samples, by the paper's band, and how far apart single tokens are, nat."""
    theirs = [np.asarray(sample.logprobs, dtype=np.float64) for sample in samples]
    ratios: list[LogRatios] = [log_ratios(*pair) for pair in zip(mine, theirs, strict=True)]
    units = [decision for each in ratios for decision in decide([each])]
    worst = max(float(np.abs(each).max()) for each in ratios)
    return telemetry(units, np.concatenate(mine), np.concatenate(theirs)) | {"largest": worst}


def engine(name: str, options: dict[str, Any]) -> Sampler:
    """Make an engine; the model is its own on the device that both use in turn."""
    model, device, dtype = options["model"], options["device"], options["dtype"]
    if name == "transformers":
        return TransformersSampler(model, device=device, dtype=dtype, **({} if device == "cpu" else ROWS))
    flags = ["--dtype", dtype, "--max-model-len", str(options["context"]), "--gpu-memory-utilization", "0.5"]
    flags += ["--enforce-eager"] if options["eager"] else []
    kind, _, index = device.partition(":")
    environment = {"CUDA_VISIBLE_DEVICES": index or "0"} if kind == "cuda" else {}
    return VllmSampler(str(model), options=flags, environment=environment)


def figures(written: Written, model: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Add up what is said of one engine."""
    many = [prompt for prompt in written.prompts for _ in range(options["samples"])]
    mine = trained(model, many, written.sampled, options["temperature"], options["device"])
    return {
        "ready_s": round(written.ready_s, 1),
        "tokens_per_s": round(written.tokens_per_s),
        "tokens": sum(len(each.output_ids) for each in written.sampled),
        "mismatch": mismatch(mine, written.sampled),
    }


def agreement(left: Written, right: Written) -> dict[str, Any]:
    """Compare greedy texts, and the log-probabilities of those that are the same."""
    pairs = list(zip(left.greedy, right.greedy, strict=True))
    same = [(mine, theirs) for mine, theirs in pairs if mine.output_ids == theirs.output_ids]
    apart = [abs(x - y) for pair in same for x, y in zip(*(each.logprobs for each in pair), strict=True)]
    places = [
        next(
            (
                place
                for place, tokens in enumerate(zip(mine.output_ids, theirs.output_ids, strict=False))
                if len(set(tokens)) > 1
            ),
            -1,
        )
        for mine, theirs in pairs
        if mine.output_ids != theirs.output_ids
    ]
    return {"asked": len(pairs), "same": len(same), "largest": max(apart, default=None), "differ_at": places[:20]}


@click.command(help=__doc__)
@click.option("--model", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the policy.")
@click.option("--problems", multiple=True, required=True, help="Names, files, folders, sets.")
@click.option("--device", default="cuda:0", show_default=True, help="Where both engines and the trainer run, in turn.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--samples", default=16, show_default=True, help="Completions a problem, beside the greedy one.")
@click.option("--temperature", default=0.7, show_default=True)
@click.option("--max-new-tokens", default=512, show_default=True)
@click.option("--context", default=2048, show_default=True, help="Longest prompt and completion together, for vLLM.")
@click.option("--eager", is_flag=True, help="No graphs in vLLM: it starts sooner and writes more slowly.")
@click.option("--templates", default="compact", show_default=True, help="Prompt templates.")
def main(problems: tuple[str, ...], templates: str, **options: Any) -> None:
    """Write by one engine after the other, and compare."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    chosen = find_problems(problems, load_settings())
    chats = [next_prompt(problem, (), load_templates(templates)) for problem in chosen]
    names = ["transformers", *(["vllm"] if find_spec("vllm") else [])]
    written: dict[str, Written] = {}
    for name in names:
        say(f"{name} writes {len(chats)} x {1 + options['samples']} completions ...")
        written[name] = asyncio.run(write(engine(name, options), chats, options))
    found: dict[str, Any] = {name: figures(each, options["model"], options) for name, each in written.items()}
    rows = [
        (
            name,
            each["ready_s"],
            each["tokens_per_s"],
            f"{each['mismatch']['mrs/acceptance']:.4f}",
            f"{each['mismatch']['mrs/abs_mean']:.2e}",
            f"{each['mismatch']['largest']:.2e}",
        )
        for name, each in found.items()
    ]
    emit_table(("engine", "ready, s", "tokens/s", "MRS keeps", "mean log ratio", "largest"), rows)
    line = {"benchmark": "engines", "dtype": options["dtype"], "temperature": options["temperature"], **found}
    if len(names) > 1:
        line["greedy"] = agreement(written["transformers"], written["vllm"])
    click.echo(json.dumps(line))


if __name__ == "__main__":
    main()
