"""Record: what a run tells while it goes on, to metrics.jsonl and to people; and the way to stop it."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from drkernel_q import record
from drkernel_q.errors import Cancelled

#: What the libraries call it, and what we do.
_NAMES = {
    "loss": "loss",
    "mean_token_accuracy": "accuracy",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "num_tokens": "tokens",
    "eval_loss": "validation_loss",
    "eval_mean_token_accuracy": "validation_accuracy",
}


class Record(TrainerCallback):
    """One JSON line a step and a validation, and one line for people every few steps."""

    def __init__(self, file: Path, tell: Callable[[str], None], every: int, *, validates: bool) -> None:
        self.last: dict[str, float] = {}
        """Every figure as it was last, if it was finite."""
        self.validated_step: int | None = None
        self.tokens_per_s = 0.0
        """Over the training time of this process so far."""
        self._file, self._tell, self._every, self._validates = file, tell, every, validates
        self._begun, self._first_step, self._tokens_before = 0.0, 0, 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget what was written after the checkpoint that the run goes on from."""
        self._begun, self._first_step = time.monotonic(), state.global_step
        if state.is_world_process_zero and self._file.exists():
            kept = record.forget_after(self._file, state.global_step)
            self._tokens_before = max((line.get("tokens") or 0 for line in kept), default=0)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write and tell a step or a validation."""
        facts = {_NAMES[name]: value for name, value in (logs or {}).items() if name in _NAMES}
        if not state.is_world_process_zero or not {"loss", "validation_loss"} & set(facts):
            return
        self._take(facts, state)
        if "tokens" in facts:
            facts["tokens"] += self._tokens_before
        record.append(self._file, state.global_step, {"epoch": round(state.epoch or 0, 4), **facts})
        if "validation_loss" in facts:
            self._tell(
                f"step {state.global_step}/{state.max_steps}  validation loss {facts['validation_loss']:.4f}  "
                f"accuracy {facts.get('validation_accuracy', math.nan):.4f}"
            )
        elif state.global_step % self._every == 0 or state.global_step == state.max_steps:
            self._tell(self._line(facts, state))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Validate after the last step."""
        if self._validates and state.global_step == state.max_steps:
            control.should_evaluate = True

    def _take(self, facts: dict[str, float], state: TrainerState) -> None:
        self.last |= {name: value for name, value in facts.items() if math.isfinite(value)}
        if "validation_loss" in facts:
            self.validated_step = state.global_step
        else:
            self.tokens_per_s = facts.get("tokens", 0.0) / max(time.monotonic() - self._begun, 1e-9)

    def _line(self, facts: dict[str, float], state: TrainerState) -> str:
        done = state.global_step - self._first_step
        left_s = (state.max_steps - state.global_step) * (time.monotonic() - self._begun) / max(done, 1)
        return (
            f"step {state.global_step}/{state.max_steps}  loss {facts['loss']:.4f}  "
            f"accuracy {facts.get('accuracy', math.nan):.3f}  lr {facts.get('learning_rate', 0.0):.2e}  "
            f"{self.tokens_per_s:,.0f} tok/s  {left_s / 60:.1f} min left"
        )


class Stop(TrainerCallback):
    """Ends a run after the step in hand, with a checkpoint, when SIGTERM comes."""

    def __init__(self) -> None:
        self._asked = False

    @contextlib.contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Listen while the block runs."""

        def ask(number: int, frame: object) -> None:
            self._asked = True

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may listen
            return
        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save and stop, if it was asked for."""
        if self._asked:
            control.should_save = control.should_training_stop = True

    def check(self, step: int) -> None:
        """Say that the run was stopped, if it was.

        Raises:
            Cancelled: it was.
        """
        if self._asked:
            raise Cancelled(f"Stopped after step {step}; the same command with --resume goes on from there.")
