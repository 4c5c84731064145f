"""Shape: the sizes of a Qwen3-shaped model, and those of the ones that are made here; imports no torch."""

from typing import Literal, NamedTuple

Size = Literal["tiny", "0.9m", "1.6m", "5m", "20m"]

#: Hidden size, layers, heads, heads of keys and values, width of a head; the MLP is three times the hidden size.
SIZES: dict[Size, tuple[int, int, int, int, int]] = {
    "tiny": (64, 2, 2, 2, 32),
    "0.9m": (128, 3, 4, 4, 32),
    "1.6m": (128, 7, 2, 1, 64),
    "5m": (256, 6, 4, 2, 64),
    "20m": (384, 11, 6, 2, 64),
}
MLP_RATIO = 3


class Shape(NamedTuple):
    """Sizes of a Qwen3-shaped model."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Count the weights, by their shapes."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads) + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    def adapter_parameters(self, rank: int) -> int:
        """Count the weights of LoRA adapters of this rank on every linear layer but the last."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sides = 2 * (self.hidden + query) + 2 * (self.hidden + key) + 3 * (self.hidden + self.intermediate)
        return self.layers * rank * sides


def new_shape(size: Size, vocabulary: int) -> Shape:
    """Return the shape of a model that is made anew."""
    hidden, layers, heads, kv_heads, width = SIZES[size]
    return Shape(hidden, layers, MLP_RATIO * hidden, heads, kv_heads, width, vocabulary, tied=True)
