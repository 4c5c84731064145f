"""Ablation: arms of training runs that differ in a few settings, each over the same seeds; planned from one file."""

import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator

from drkernel_q import record
from drkernel_q.errors import BadSettings
from drkernel_q.value import Value
from policy.config import flat, load_config
from policy.grading.curve import Series
from policy.training.recipe import TrainConfig


class AblationConfig(Value):
    """What is compared with what."""

    preset: str | None = None
    """Preset of `drkq train` that all arms start from."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    """Each arm is trained once with each of them; intervals are over seeds, so that one gives none."""
    window: Annotated[int, Field(ge=1)] = 5
    """Steps that a curve is averaged over."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Settings of all arms, as in a file of `drkq train`."""
    arms: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """Settings of each arm by its name, on top of those; the others are compared with the first."""

    @field_validator("arms")
    @classmethod
    def _are_names(cls, arms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if wrong := [name for name in arms if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name)]:
            raise ValueError(f"`{wrong[0]}` cannot be the name of an arm; use small letters, digits and - . _")
        return arms

    @field_validator("seeds")
    @classmethod
    def _are_different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is there twice")
        return seeds


class ArmRun(NamedTuple):
    """One training run of an ablation."""

    arm: str
    seed: int
    name: str
    """Name of the run."""
    config: TrainConfig


def plan(config: AblationConfig, name: str) -> list[ArmRun]:
    """Return all runs of an ablation of this name: every arm with the first seed, then with the next.

    So whatever is there after a while can be compared.

    Raises:
        BadSettings: an arm has a setting that is wrong; the message names both.
    """
    return [
        ArmRun(arm, seed, f"{name}-{arm}-seed{seed}", _of_arm(config, arm, seed))
        for seed in config.seeds
        for arm in config.arms
    ]


def chosen(config: AblationConfig, arms: tuple[str, ...]) -> AblationConfig:
    """Return the ablation of these arms alone.

    Raises:
        BadSettings: there is no such arm.
    """
    if unknown := [arm for arm in arms if arm not in config.arms]:
        raise BadSettings(f"There is no arm `{unknown[0]}`; there are {', '.join(config.arms)}.")
    return config.model_copy(update={"arms": {arm: config.arms[arm] for arm in arms}})


def series(runs: list[ArmRun], folder: Path) -> list[Series]:
    """Read what the runs below a folder have written so far; those that have not begun are left out."""
    found = [
        Series(run.arm, run.seed, run.config.rollout.turns, record.read(folder / run.name / record.FILE))
        for run in runs
    ]
    return [each for each in found if each.rows]


def _of_arm(config: AblationConfig, arm: str, seed: int) -> TrainConfig:
    settings = {**flat(config.base), **flat(config.arms[arm]), "seed": seed}
    try:
        return load_config(TrainConfig, "train", config.preset, flags=settings)
    except BadSettings as error:
        raise BadSettings(f"Arm `{arm}`: {error}") from None
