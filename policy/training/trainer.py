"""Trainer: the loop of training steps, its checkpoints, and how it ends."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from policy.training import checkpoint
from policy.training.checkpoint import Manifest
from policy.training.learner import Learner
from policy.training.publisher import Publisher
from policy.training.recipe import FREE_AT_RESUME, TrainConfig
from policy.training.step import Report, Stopped, TrainingStep
from policy.training.tracking import Tracking
from policy.training.validation import Validation

Watch = Callable[[Report], None]


class Summary(NamedTuple):
    """What a call of the trainer came to."""

    step: int
    """Training steps that the run has done, over all calls."""
    stopped: bool
    """Whether somebody stopped it before its last step; it was saved and can go on."""


class Trainer:
    """Takes step after step, saves, and goes on where an earlier call was."""

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        step: TrainingStep,
        *,
        learner: Learner,
        publisher: Publisher,
        tracking: Tracking,
        validation: Validation | None = None,
        watch: Watch = lambda _: None,
    ) -> None:
        """Put the parts together; `watch` is told of every step."""
        self.config = config
        self.folder = folder
        self.step = step
        self.learner = learner
        self.publisher = publisher
        self.tracking = tracking
        self.validation = validation
        self.watch = watch
        self._saved: int | None = None

    async def run(self, *, resume: bool = False) -> Summary:
        """Train until the last step, or until SIGTERM or Ctrl-C; then the run is saved as it was after its last step.

        Raises:
            BadSettings: it is to be resumed with another configuration.
        """
        done = await self._restore() if resume else 0
        self.tracking.forget_after(done)
        await self.publisher.publish(done)  # before anything is sampled: samplers may hold other weights
        if self.validation is not None and done == 0:
            self.tracking.log(0, await self.validation(0))
        try:
            with self._signals():
                while done < self.config.steps and not self.step.stopping.is_set():
                    report = await self.step(done + 1)
                    done += 1
                    await self._finish(report)
        except Stopped:
            pass
        finally:
            await self.step.leave()
            # Whatever ended the loop, a sampler that went away included, the last whole step is not lost.
            if self._saved != done:
                await self._save(done)
            self.tracking.close()
        return Summary(done, stopped=done < self.config.steps)

    async def _finish(self, report: Report) -> None:
        """Write down what a step came to, and do what is due after it."""
        metrics = report.metrics
        if self.validation is not None and self.validation.is_due(report.step):
            metrics = metrics | await self.validation(report.step)
        self.tracking.log(report.step, metrics)
        self.watch(report._replace(metrics=metrics))
        if report.step % self.config.checkpoint.every_steps == 0:
            await self._save(report.step)

    async def _save(self, step: int) -> None:
        manifest = Manifest(
            step=step,
            cursor=step * self.config.problems.per_step,
            policy_version=step,
            config=self.config.model_dump(mode="json"),
            files={},
        )
        write: Callable[[Path], None] = lambda folder: self.learner.lead("save", folder)  # noqa: E731
        keep = self.config.checkpoint.keep
        await asyncio.to_thread(checkpoint.save, self.folder / "checkpoints", manifest, write, keep=keep)
        self._saved = step

    async def _restore(self) -> int:
        """Load the newest checkpoint; return the steps that it has done, 0 without one."""
        found = await asyncio.to_thread(checkpoint.latest, self.folder / "checkpoints")
        if found is None:
            return 0
        manifest = found.manifest
        checkpoint.refuse_differences(manifest.config, self.config.model_dump(mode="json"), free=FREE_AT_RESUME)
        await asyncio.to_thread(self.learner.lead, "load", found.folder)
        self._saved = manifest.step
        return manifest.step

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at SIGTERM and Ctrl-C; a second one ends the process as it always would."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)

        def stop(number: signal.Signals) -> None:
            self.step.stopping.set()
            loop.remove_signal_handler(number)

        for number in numbers:
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
