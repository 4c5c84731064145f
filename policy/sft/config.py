"""SftConfig: everything that decides what supervised fine-tuning does. Imports no torch."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from drkernel_q.value import Value

Tracker = Literal["tensorboard", "wandb", "trackio", "mlflow", "swanlab", "comet_ml"]
Positive = Annotated[int, Field(ge=1)]


class DataConfig(Value):
    """Which conversations are learned from, and how they become rows of tokens."""

    files: tuple[Path, ...] = Field(min_length=1)
    """JSONL or Parquet files with `messages`, folders of them, or folders that `datasets` saved."""
    validation: tuple[Path, ...] = ()
    """Conversations to validate on; without them a share of the problems is set aside."""
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Share of the problems (what is said before the first answer) to set aside, when `validation` names no files."""
    max_validation_rows: Positive = 512
    """Most rows that one validation reads."""
    max_tokens: Positive = 4096
    """Longest row; turns that do not fit are left out whole, with all that follow."""
    loss_on: Literal["all", "last"] = "all"
    """Which answers of a conversation are learned: every one (the paper), or the last."""
    packing: bool = False
    """Put several conversations into a row of `max_tokens`, none seeing another; `batch_size` counts such rows."""


class OptimizerConfig(Value):
    """AdamW and its schedule."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "cosine"
    warmup_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the steps in which the learning rate rises to its height."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0


class LoraConfig(Value):
    """Low-rank adapters on every linear layer, instead of all weights; merged into the model at the end."""

    rank: Annotated[int, Field(ge=0)] = 0
    """0 trains all weights."""
    alpha: Positive = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


class SftConfig(Value):
    """One supervised fine-tuning run."""

    model: str
    """What to start from: a folder, a GGUF file, or a name of the Hugging Face hub."""
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig = LoraConfig()
    epochs: Annotated[float, Field(gt=0)] = 4.0
    max_steps: Positive | None = None
    """Optimizer steps, instead of epochs."""
    batch_size: Positive = 256
    """Rows of one optimizer step, over all devices."""
    micro_batch_size: Positive = 1
    """Rows that one device holds at once; the gradient of a step is the same for any."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """`bfloat16` computes in it, and keeps what is trained in float32 (with LoRA, what is frozen is bfloat16)."""
    gradient_checkpointing: bool = True
    device: Literal["auto", "cpu"] = "auto"
    """`auto` takes what accelerate finds."""
    seed: int = 0
    log_every: Positive = 1
    """Steps between two lines of the loss curve."""
    validate_every: Positive | None = None
    """Steps between two validations; there is always one at the end."""
    save_every: Positive | None = None
    """Steps between two checkpoints; there is always one at the end."""
    keep_checkpoints: Positive = 2
    trackers: tuple[Tracker, ...] = ("tensorboard",)
    """Beside metrics.jsonl, which is always written."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch_size % self.micro_batch_size:
            raise ValueError(f"batch_size {self.batch_size} is no multiple of micro_batch_size {self.micro_batch_size}")
        return self


class SftResult(Value):
    """What a run came to."""

    folder: Path
    """The model: loaded by transformers and vLLM."""
    steps: int
    """Optimizer steps, those before a resume included."""
    rows: int
    """Rows in an epoch."""
    parameters: int
    trained_parameters: int
    seconds: float
    """Training time of this process."""
    tokens_per_s: float
    """Tokens of rows, prompts included and padding not, over training time of this process."""
    loss: float | None
    """Last training loss, nats a token of the answers."""
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    """Share of the validation's answer tokens that are the likeliest under the model (given all before)."""

    @property
    def summary(self) -> str:
        """All of it in a line."""
        figures = [f"{self.steps} steps", f"{self.seconds:.0f} s", f"{self.tokens_per_s:,.0f} tok/s"]
        if self.loss is not None:
            figures.append(f"loss {self.loss:.4f}")
        if self.validation_loss is not None:
            figures.append(f"validation {self.validation_loss:.4f}")
        if self.validation_accuracy is not None:
            figures.append(f"token accuracy {self.validation_accuracy:.1%}")
        return f"{self.folder}  {'  '.join(figures)}"
