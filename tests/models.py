"""Small models for tests: made on the spot, with distributions that are neither flat nor certain."""

from pathlib import Path

import torch

from policy.model.model import load_model, make_model, save_model
from tests.need import ROOT

TEXTS = [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]


def a_model(folder: Path, *, seed: int = 0, tied: bool = False) -> Path:
    """Make a tiny Qwen3-shaped model in fp32 in a new folder, whose distributions are neither even nor certain.

    With random weights and the embedding for an output layer (`tied`) the likeliest token always is the last one again.
    """
    flat = folder.with_name(f"{folder.name}-flat")
    made = make_model(flat, "tiny", TEXTS, vocabulary=400, context_tokens=1024, seed=seed)
    model, tokenizer = load_model(made)
    with torch.no_grad():
        model.model.norm.weight.mul_(6.0)
    if not tied:
        generator = torch.Generator().manual_seed(seed)
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(0.05 * torch.randn(model.lm_head.weight.shape, generator=generator))
    save_model(model, tokenizer, folder)
    return folder


@torch.no_grad()
def recomputed(folder: Path, prompt: tuple[int, ...], output: tuple[int, ...], temperature: float) -> torch.Tensor:
    """Log-probabilities of a completion's tokens, by one forward pass over prompt and completion."""
    model, _ = load_model(folder)
    logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
