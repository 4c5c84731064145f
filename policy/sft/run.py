"""A run of supervised fine-tuning: its folder, its rows, TRL's trainer over them, and what it came to.

The folder holds `config.json`, `metrics.jsonl`, `checkpoints/` and `tensorboard/`, and at the end `model/`; with LoRA
`adapter/` too.
"""

import contextlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import datasets
import torch
from accelerate import PartialState
from peft import LoraConfig as PeftConfig
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl.trainer.sft_config import SFTConfig as TrlConfig
from trl.trainer.sft_trainer import SFTTrainer

from drkernel_q.errors import BadSettings, MissingExtra
from drkernel_q.record import FILE
from policy.config import differences
from policy.model.model import load_model, load_tokenizer, quiet, save_model
from policy.sft.config import LoraConfig, SftConfig, SftResult
from policy.sft.record import Record, Stop
from policy.sft.rows import Rows, dataset

Tell = Callable[[str], None]


def run_sft(config: SftConfig, folder: Path, *, resume: bool = False, tell: Tell = lambda _: None) -> SftResult:
    """Train, validate, and save the model; `tell` gets one line a step.

    A run that goes on from a checkpoint ends with the weights of one that was never interrupted.

    Raises:
        BadInput: the data cannot be used.
        BadModel: the model cannot be used.
        BadSettings: the folder belongs to another run.
        MissingExtra: a tracker is not installed.
        Cancelled: SIGTERM came; the state is in a checkpoint.
    """
    _see_trackers(config)
    _claim(config, folder, resume=resume)
    tokenizer = load_tokenizer(config.model)
    rows = Rows(config.data, tokenizer)
    model, saved_dtype = _load(config)
    record = Record(folder / FILE, tell, config.log_every, validates=bool(rows.validation.rows))
    stop = Stop()
    with _quiet_libraries():
        trainer = make_trainer(config, folder, model, tokenizer, rows, [record, stop])
        trained_parameters = _trained(trainer)  # adapters are gone once they are merged
        checkpoint = get_last_checkpoint(str(folder / "checkpoints")) if resume else None
        with stop.on_sigterm():
            trained = trainer.train(resume_from_checkpoint=checkpoint)
        stop.check(trainer.state.global_step)
        if rows.validation.rows and record.validated_step != trainer.state.global_step:
            trainer.evaluate()  # the run goes on from its last checkpoint, with nothing left to train
        if trainer.is_world_process_zero():
            _save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, folder, saved_dtype)
    return _result(folder, trainer, trained_parameters, trained.metrics["train_runtime"], record)


def _see_trackers(config: SftConfig) -> None:
    for name in config.trackers:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(
                f"The tracker {name} is not installed: `pip install {name}`, or take it out of `trackers`."
            )


def _claim(config: SftConfig, folder: Path, *, resume: bool) -> None:
    """Make the folder this run's, or see that it is."""
    file = folder / "config.json"
    now = config.model_dump(mode="json")
    if not resume:
        if folder.exists() and any(folder.iterdir()):
            raise BadSettings(f"{folder} is not empty; go on with --resume, or name another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
        return
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSettings(f"{folder} holds no run to go on with.") from error
    different = [f"{key} ({was}, now {is_})" for key, was, is_ in differences(before, now)]
    if different:
        raise BadSettings(f"{folder} was begun with other settings: {', '.join(different)}.")
    if (folder / "model").exists():
        raise BadSettings(f"{folder} is finished: {folder / 'model'} is there.")


def _load(config: SftConfig) -> tuple[PreTrainedModel, torch.dtype]:
    """Load the weights to train, and tell the type that they were saved in.

    Small steps vanish in bfloat16 (lr 1e-6 is far below its resolution), so weights that are trained are float32.
    """
    model, _ = load_model(config.model)
    frozen = torch.bfloat16 if config.lora.rank and config.precision == "bfloat16" else torch.float32
    saved_dtype = model.dtype
    return cast("PreTrainedModel", cast("torch.nn.Module", model).to(frozen)), saved_dtype


def _adapters(lora: LoraConfig) -> PeftConfig | None:
    if not lora.rank:
        return None
    return PeftConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


class _Trainer(SFTTrainer):
    """TRL's trainer, without the model card that it writes beside every checkpoint."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none."""


def make_trainer(
    config: SftConfig,
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    callbacks: Sequence[TrainerCallback] = (),
) -> SFTTrainer:
    """Give TRL's trainer these rows and no others: what is learned was decided by the labels."""
    trainer = _Trainer(
        model=model,
        args=one_device(_arguments(config, folder, validates=bool(rows.validation.rows))),
        train_dataset=dataset(rows.train.rows),
        eval_dataset=dataset(rows.validation.rows) if rows.validation.rows else None,
        processing_class=tokenizer,
        peft_config=_adapters(config.lora),
        callbacks=[*callbacks, *_tensorboard(config, folder)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _arguments(config: SftConfig, folder: Path, *, validates: bool) -> TrlConfig:
    optimizer, data = config.optimizer, config.data
    return TrlConfig(
        output_dir=str(folder / "checkpoints"),
        run_name=folder.name,
        seed=config.seed,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.micro_batch_size,
        per_device_eval_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=_accumulation(config),
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type=optimizer.schedule,
        warmup_steps=optimizer.warmup_share,
        weight_decay=optimizer.weight_decay,
        adam_beta2=optimizer.beta2,
        max_grad_norm=optimizer.max_grad_norm,
        bf16=config.precision == "bfloat16",
        use_cpu=_on_cpu(config),
        gradient_checkpointing=config.gradient_checkpointing,
        max_length=data.max_tokens,
        packing=data.packing,
        eval_packing=False,
        dataset_kwargs=None if data.packing else {"skip_prepare_dataset": True},
        train_sampling_strategy="random" if data.packing else "group_by_length",
        pad_to_multiple_of=None,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=1,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if validates and config.validate_every else "no",
        eval_steps=config.validate_every,
        save_strategy="steps" if config.save_every else "no",
        save_steps=config.save_every or 500,
        save_total_limit=config.keep_checkpoints,
        report_to=[name for name in config.trackers if name != "tensorboard"] or "none",
        disable_tqdm=True,
    )


def one_device(arguments: TrlConfig) -> TrlConfig:
    """Let this process have one device: without a launcher, transformers takes all there are, which TRL refuses."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _on_cpu(config: SftConfig) -> bool:
    return config.device == "cpu" or not torch.accelerator.is_available()


def _accumulation(config: SftConfig) -> int:
    """Micro-batches of one optimizer step on each device."""
    rows: int = config.micro_batch_size * PartialState(cpu=_on_cpu(config)).num_processes
    if config.batch_size % rows:
        raise BadSettings(f"batch_size {config.batch_size} is no multiple of the {rows} rows that all devices hold.")
    return config.batch_size // rows


def _tensorboard(config: SftConfig, folder: Path) -> list[Any]:
    if "tensorboard" not in config.trackers:
        return []
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations.integration_utils import TensorBoardCallback

    return [TensorBoardCallback(SummaryWriter(str(folder / "tensorboard")))]


def _save(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: torch.dtype) -> None:
    """Save what transformers and vLLM load, in the type that the model came in; adapters are merged and kept beside."""
    if isinstance(model, PeftModel):
        model.save_pretrained(str(folder / "adapter"))
        # Merged in float32, since a small adapter is lost in the rounding of bfloat16.
        model = model.float().merge_and_unload()
    shutil.rmtree(folder / "model", ignore_errors=True)
    model.config.use_cache = True
    save_model(model.to(dtype), tokenizer, folder / "model")


def _trained(trainer: SFTTrainer) -> int:
    parameters = cast("torch.nn.Module", trainer.model).parameters()
    return sum(each.numel() for each in parameters if each.requires_grad)


def _result(folder: Path, trainer: SFTTrainer, trained_parameters: int, seconds: float, record: Record) -> SftResult:
    parameters = cast("torch.nn.Module", trainer.model).parameters()
    return SftResult(
        folder=folder / "model",
        steps=trainer.state.global_step,
        rows=len(cast("datasets.Dataset", trainer.train_dataset)),
        parameters=sum(each.numel() for each in parameters),
        trained_parameters=trained_parameters,
        seconds=seconds,
        tokens_per_s=record.tokens_per_s,
        loss=record.last.get("loss"),
        validation_loss=record.last.get("validation_loss"),
        validation_accuracy=record.last.get("validation_accuracy"),
    )


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Let the libraries draw no bars and say nothing below an error."""
    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with quiet():
            yield
    finally:
        if bars:
            datasets.enable_progress_bars()
