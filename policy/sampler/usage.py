"""Usage: what a sampler has read and written so far."""

from dataclasses import dataclass


@dataclass
class Usage:
    """Counts of a sampler; it belongs to the event loop's thread."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """By the prices that the sampler was given; 0 without any."""

    def add(self, prompt_tokens: int, completion_tokens: int, cost: float = 0.0) -> None:
        """Count one completion."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cost += cost
