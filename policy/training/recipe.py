"""Recipe: every number of a training run, with what it means. `TrainConfig` is what presets, files and flags fill."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from drkernel_q.evaluation import Protocol
from drkernel_q.reward import RewardConfig
from drkernel_q.value import Value
from policy.method.advantage import AdvantageConfig
from policy.method.laziness import LazinessConfig
from policy.method.loss import LossConfig
from policy.method.mismatch import MismatchConfig
from policy.model.shape import Size
from policy.rollouts.rollout import RolloutConfig

#: What may differ when a run is resumed: how long it goes on, how often it saves, and where it is written about.
FREE_AT_RESUME = ("steps", "checkpoint", "tracking", "validation", "sampler", "batch.max_tokens")

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class ModelConfig(Value):
    """The policy."""

    name: str = "new"
    """A folder, a GGUF file, a name of the hub; or `new`, which makes a small one with random weights."""
    size: Size = "tiny"
    """Size of a new one."""
    vocabulary: Annotated[int, Field(ge=261)] = 2048
    """Tokens of a new one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What it is computed in, by trainer and sampler alike; trained weights are held in float32 in any case."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, where they would not fit into memory."""


Sharding = Literal["none", "full"]


class LoraConfig(Value):
    """Train low-rank adapters of all linear layers in place of the weights."""

    rank: Annotated[int, Field(ge=0)] = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: Count = 32
    """Scale of the adapters is alpha / rank."""


class OptimizerConfig(Value):
    """AdamW and its schedule."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    beta1: Share = 0.9
    beta2: Share = 0.999
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """A longer gradient is scaled to this."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up: nothing, or fall to 0 at `schedule_steps`."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    schedule_steps: Count = 300
    """Steps of the whole schedule; apart from `steps`, so that a run can go on for longer."""


class BatchConfig(Value):
    """How rows are computed; none of it changes the gradient but for rounding."""

    max_tokens: Count = 16_384
    """Most tokens of a micro-batch, padding included; a longer row is one of its own."""
    chunk_tokens: Count = 1024
    """Tokens whose logits are in memory at once."""


class SamplerConfig(Value):
    """Who writes the completions."""

    name: str = "own"
    """`own`: this process, with the very weights that are trained, or a copy of them where these are sharded or learn
    meanwhile; `vllm`: a server that is started for the model; `http://HOST:PORT,...`: vLLM servers that run already and
    see the run's folder; `scripted:FILE`: a rehearsal."""
    load_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Longest time for servers to load published weights."""
    device: str = "auto"
    """Device of an `own` copy: `auto` (that of the trainer), `cpu`, `cuda:N`."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """What a copy or a vLLM of ours computes in, if not in `model.dtype`: a mismatch on purpose, for MRS to see."""
    memory: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the device's memory for a vLLM that is started; by default 0.35 where the device is shared, and else as
    vLLM would have it."""
    sleeps: bool = False
    """Whether that vLLM gives its memory back while the trainer learns."""
    gpus: str | None = None
    """GPUs that it sees (its CUDA_VISIBLE_DEVICES), such as `1`."""
    python: str | None = None
    """Python that has vLLM, if not the one that runs drkq."""
    flags: tuple[str, ...] = ()
    """What else it is told, such as `--enforce-eager`."""


class CheckpointConfig(Value):
    """When the run is saved."""

    every_steps: Count = 10
    keep: Count = 2
    """Checkpoints that stay."""


class ValidationConfig(Value):
    """Rollouts on other problems, which nothing is learned from."""

    every_steps: Annotated[int, Field(ge=0)] = 0
    """0: never. Otherwise before the first step and after every so many."""
    problems: tuple[str, ...] = ()
    """As `problems.names`."""
    samples: Count = 8
    """Trajectories a problem."""


class ProblemConfig(Value):
    """What is trained on."""

    names: tuple[str, ...] = ("builtin/1",)
    """Problems by name, whole sets (`builtin`, `builtin/1`, `kernelbench/2`), files, folders, rows of data sets."""
    per_step: Count = 16
    """Problems a step; each is a group of `rollout.group_size` trajectories."""


class TrackingConfig(Value):
    """Where numbers go beside the run's own file of JSON lines."""

    trackers: tuple[
        Literal["tensorboard", "wandb", "trackio", "mlflow", "swanlab", "comet_ml", "aim", "clearml", "dvclive"], ...
    ] = ("tensorboard",)


class TrainConfig(Value):
    """A training run, whole."""

    seed: int = 0
    """Decides the order of problems, every completion, every draw and a new model's weights."""
    steps: Count = 300
    shared_device: bool = True
    """Whether sampler, workers and trainer use one device, and must take turns."""
    sharding: Sharding = "none"
    """What each of several ranks holds of weights, gradients and the optimizer's state: all of it (`none`), or its part
    (`full`, FSDP2)."""
    staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """Steps that the weights which write may be behind those that learn. With 1, the rollouts of the next step are made
    and judged while this one is learned from, by the weights of before; that needs devices of their own."""
    judge_device: str = "auto"
    """Where kernels are judged: `auto`, `cpu`, `cuda` or `cuda:N`; or `recorded`: nowhere, by facts of the kind of
    device that DRKQ_RECORDED names. What was never measured has no reward then, and nothing is learned from it."""
    protocol: Protocol = Protocol()
    """How kernels are judged: trials, baselines, precision, time for timing."""
    model: ModelConfig = ModelConfig()
    lora: LoraConfig = LoraConfig()
    problems: ProblemConfig = ProblemConfig()
    sampler: SamplerConfig = SamplerConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    mismatch: MismatchConfig = MismatchConfig()
    laziness: LazinessConfig = LazinessConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    batch: BatchConfig = BatchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    validation: ValidationConfig = ValidationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _has_devices(self) -> Self:
        if self.staleness and self.shared_device:
            raise ValueError("staleness 1 needs devices of their own; set shared_device = false")
        return self

    @property
    def copies(self) -> bool:
        """Whether a sampler of this process needs weights of its own, since those that are trained are not at hand."""
        apart = self.sharding == "full" or self.staleness > 0 or self.sampler.dtype is not None
        return self.sampler.name == "own" and apart
