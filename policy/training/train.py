"""Train: a run from its configuration alone: model, sampler, queue, store and trainer, opened and put together."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs, set_seed
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from drkernel_q.errors import BadSettings
from drkernel_q.lock import Lease, cpu_identity
from drkernel_q.problem import Problem, builtin_files, find_problems
from drkernel_q.settings import Settings
from drkernel_q.store import Store
from policy.model.model import load_model, make_model
from policy.rollouts.judging import Judge, open_judge
from policy.rollouts.phase import PhasedJudge, PhasedSampler, Phases
from policy.rollouts.recorded import RECORDED, RecordedJudge
from policy.rollouts.rollout import Rollout
from policy.sampler.factory import open_sampler
from policy.sampler.server import COMMAND
from policy.sampler.transformers import TransformersSampler
from policy.sampler.vllm import VllmSampler
from policy.training.learner import Learner, with_adapters
from policy.training.publisher import Copied, InProcess, Publisher, SharedFolder
from policy.training.recipe import TrainConfig
from policy.training.step import TrainingStep
from policy.training.tracking import Tracking, check_trackers
from policy.training.trainer import Summary, Trainer, Watch
from policy.training.validation import Validation
from policy.training.weights import WeightFolder

Tell = Callable[[str], None]
#: Share of a device's memory that a vLLM beside the trainer takes.
SHARED_MEMORY = 0.35
#: Ranks wait for rank 0 while it samples and judges, which may take hours.
_RANKS_WAIT = timedelta(days=2)


async def train(
    config: TrainConfig,
    folder: Path,
    settings: Settings,
    *,
    resume: bool = False,
    watch: Watch = lambda _: None,
    tell: Tell = lambda _: None,
    at: Tell = lambda _: None,
) -> Summary:
    """Train a run whose folder is given, and leave the model in `FOLDER/model`; the run has the name of the folder.

    Under `accelerate launch` every rank calls this; rank 0 samples, asks the queue and writes, the others only compute.
    `tell` is told what is being got ready, and `at` where in a step the run is.

    Raises:
        BadSettings, BadModel, BadProblem: something in the configuration cannot be used.
        Unavailable: a part that the run needs does not answer, and did not come back.
    """
    check_trackers(config.tracking.trackers)
    problems = find_problems(config.problems.names, settings)
    held_out = find_problems(config.validation.problems, settings) if config.validation.every_steps else []
    tell("loading the model")
    accelerator = make_accelerator(config, folder)
    with accelerator.main_process_first():  # which makes the model, if it is a new one
        model, tokenizer = load_policy(config, folder)
    learner = Learner(model, config, accelerator)
    if not learner.accelerator.is_main_process:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # rank 0 decides when to stop, and saves together with all
        learner.follow()
        return Summary(config.steps, stopped=False)
    try:
        with Store.open(settings.store) as store, Lease(settings.lock_dir, device_identity(learner)) as lease:
            await asyncio.to_thread(store.upgrade)
            store.add_run(folder.name, kind="train", settings=config.model_dump(mode="json"))
            async with (
                make_sampler(config, folder, learner, tokenizer) as sampler,
                make_judge(config, settings, run=folder.name, store=store, tell=tell) as judge,
            ):
                trainer = assemble(
                    config,
                    folder,
                    problems,
                    held_out,
                    learner=learner,
                    sampler=sampler,
                    judge=judge,
                    store=store,
                    phases=Phases(shared=config.shared_device, lease=lease, watch=at),
                    watch=watch,
                )
                summary = await trainer.run(resume=resume)
        state = await asyncio.to_thread(learner.lead, "merged_state")
        await asyncio.to_thread(write_model, folder / "model", state, learner, tokenizer)
        return summary
    finally:
        learner.lead("leave")


def assemble(
    config: TrainConfig,
    folder: Path,
    problems: Sequence[Problem],
    held_out: Sequence[Problem] = (),
    *,
    learner: Learner,
    sampler: Any,
    judge: Judge,
    store: Store,
    phases: Phases,
    watch: Watch = lambda _: None,
) -> Trainer:
    """Put a trainer together over parts that are open; held-out problems are what is validated on."""
    rollout = Rollout(
        sampler=PhasedSampler(sampler, phases),
        judge=PhasedJudge(judge, phases),
        config=config.rollout,
        run=folder.name,
        seed=config.seed,
        store=store,
    )
    publisher = make_publisher(config, folder, learner, sampler)
    return Trainer(
        config,
        folder,
        TrainingStep(config, problems, store, rollout=rollout, learner=learner, publisher=publisher, phases=phases),
        learner=learner,
        publisher=publisher,
        tracking=Tracking(folder, learner.accelerator, run=folder.name, config=config.model_dump(mode="json")),
        validation=Validation(config, held_out, rollout) if held_out else None,
        watch=watch,
    )


def make_accelerator(config: TrainConfig, folder: Path) -> Accelerator:
    """Make accelerate's view of devices, ranks and trackers.

    Raises:
        BadSettings: accelerate is told to shard weights, which drkq does by itself (`sharding`).
    """
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="bf16" if config.model.dtype == "bfloat16" else "no",
        log_with=list(config.tracking.trackers) or None,
        project_dir=folder,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_RANKS_WAIT)],
    )
    if accelerator.distributed_type not in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
        kind = accelerator.distributed_type.value
        raise BadSettings(f"Launch without {kind} of accelerate; `--set sharding=full` shards weights.")
    set_seed(config.seed)
    return accelerator


def load_policy(config: TrainConfig, folder: Path) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Load or make the model as it is trained: in float32, or frozen with adapters in the type it is computed in.

    Raises:
        BadModel: it cannot be used.
    """
    spec = model_source(config, folder)
    if config.model.name == "new" and not (folder / "new").exists():
        texts = [file.read_text(encoding="utf-8") for file in builtin_files().values()]
        make_model(folder / "new", config.model.size, texts, vocabulary=config.model.vocabulary, seed=config.seed)
    adapters = config.lora.rank > 0
    model, tokenizer = load_model(spec, config.model.dtype if adapters else "float32")
    if config.model.dtype == "bfloat16" and config.sampler.name == "own":
        # The sampler of this process must compute as the trainer does, which accelerate has in mixed precision.
        model.forward = torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)(model.forward)
    return (with_adapters(model, config.lora) if adapters else model), tokenizer


def model_source(config: TrainConfig, folder: Path) -> str | Path:
    """Where the model that the run begins with is: as it was named, or made anew in the run's folder."""
    return folder / "new" if config.model.name == "new" else config.model.name


@asynccontextmanager
async def make_judge(
    config: TrainConfig, settings: Settings, *, run: str, store: Store, tell: Tell
) -> AsyncIterator[Judge]:
    """Open the queue, or the store where it alone is to judge.

    Raises:
        BadSettings: recorded facts are to judge, and there are none.
        NoBroker, NoStore, NoDevice, DeviceBusy, NoWorker: a part of the queue cannot be had.
    """
    if config.judge_device == RECORDED:
        yield await asyncio.to_thread(RecordedJudge, store, settings.recorded, config.protocol)
        return
    device, protocol = config.judge_device, config.protocol
    async with open_judge(settings, run=run, archive=store, device=device, protocol=protocol, tell=tell) as judge:
        yield judge


def make_sampler(config: TrainConfig, folder: Path, learner: Learner, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Make the sampler that the configuration names.

    Raises:
        BadSettings: its tokens and weights are its own affair, so nothing can be learned from it.
    """
    name, context_tokens = config.sampler.name, config.rollout.context_tokens
    if config.copies:
        return _copy(config, folder, learner)
    if name == "own":
        return TransformersSampler((learner.model, tokenizer), context_tokens=context_tokens)
    source = str(model_source(config, folder))
    if name == "vllm":
        return _server(config, source)
    sampler = open_sampler(name, context_tokens=context_tokens, tokenizer=source)
    if not hasattr(sampler, "load_weights"):
        raise BadSettings(f"The sampler {name} cannot be trained: it gives no token ids and takes no weights.")
    return sampler


def _copy(config: TrainConfig, folder: Path, learner: Learner) -> TransformersSampler:
    device = config.sampler.device
    device = str(learner.accelerator.device) if device == "auto" else device
    model, tokenizer = load_model(model_source(config, folder), config.sampler.dtype or config.model.dtype, device)
    return TransformersSampler((model, tokenizer), context_tokens=config.rollout.context_tokens)


def _server(config: TrainConfig, source: str) -> VllmSampler:
    """A vLLM of ours, that computes in the type of the trainer, and leaves it room where they share a device."""
    chosen, context_tokens = config.sampler, config.rollout.context_tokens
    memory = chosen.memory or (SHARED_MEMORY if config.shared_device else None)
    flags = ["--dtype", chosen.dtype or config.model.dtype, "--max-model-len", str(context_tokens)]
    flags += ["--gpu-memory-utilization", str(memory)] if memory else []
    flags += ["--enable-sleep-mode"] if chosen.sleeps else []
    return VllmSampler(
        source,
        tokenizer=source,
        context_tokens=context_tokens,
        options=[*flags, *chosen.flags],
        command=[chosen.python, *COMMAND[1:]] if chosen.python else COMMAND,
        environment={"CUDA_VISIBLE_DEVICES": chosen.gpus} if chosen.gpus else {},
        sleeps=chosen.sleeps,
    )


def make_publisher(config: TrainConfig, folder: Path, learner: Learner, sampler: Any) -> Publisher:
    """Make what brings weights to that sampler."""
    if config.copies:
        return Copied(sampler, learner)
    if not config.sampler.name.startswith(("vllm", "http")):
        return InProcess(sampler)
    return SharedFolder(WeightFolder(folder / "weights"), learner, [sampler], timeout_s=config.sampler.load_timeout_s)


def device_identity(learner: Learner) -> str:
    """What the lease on the learner's device is named by; the same as workers have for it (`workers.device`)."""
    device = learner.accelerator.device
    if device.type != "cuda":
        return cpu_identity()
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def write_model(
    folder: Path, state: dict[str, torch.Tensor], learner: Learner, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write a model as transformers and vLLM load it, in place of an earlier one."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(state, temporary / "model.safetensors", metadata={"format": "pt"})
    learner.model_config.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
