"""Small models for tests: made on the spot, with distributions that are neither flat nor certain."""

from pathlib import Path

import torch

from policy.model import load_model, make_model, save_model
from tests.need import ROOT

TEXTS = [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]


def a_model(folder: Path, *, seed: int = 0, sharpness: float = 6.0) -> Path:
    """Make a tiny Qwen3-shaped model in fp32 in a new folder; random weights alone would give an even distribution."""
    made = make_model(
        folder.with_name(f"{folder.name}-flat"), "tiny", TEXTS, vocabulary=400, context_tokens=1024, seed=seed
    )
    model, tokenizer = load_model(made)
    with torch.no_grad():
        model.model.norm.weight.mul_(sharpness)
    save_model(model, tokenizer, folder)
    return folder


@torch.no_grad()
def recomputed(folder: Path, prompt: tuple[int, ...], output: tuple[int, ...], temperature: float) -> torch.Tensor:
    """Log-probabilities of a completion's tokens, by one forward pass over prompt and completion."""
    model, _ = load_model(folder)
    logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
