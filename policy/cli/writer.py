"""Writer: what commands that sample say in common about how a model writes."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from policy.rollouts.rollout import RolloutConfig
    from policy.sampler.protocol import Sampler

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Longest answer when nobody says another.
MAX_NEW_TOKENS = 8192

_OPTIONS = (
    click.option(
        "--temperature", type=click.FloatRange(0), default=1.0, show_default=True, help="0 is greedy: the same again."
    ),
    click.option(
        "--max-new-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Longest answer (default: 8192 or half the context).",
    ),
    click.option(
        "--context-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Longest prompt and answer (default: the model's).",
    ),
    click.option(
        "--templates",
        default="default",
        show_default=True,
        metavar="NAME",
        help="Set of prompt templates, or a folder.",
    ),
)


def sampling_options(command: _Command) -> _Command:
    """Add the options that `rollout_config` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def rollout_config(options: Mapping[str, Any], sampler: "Sampler", *, turns: int, group_size: int) -> "RolloutConfig":
    """Resolve the options of a command; an answer takes half of the context at most, unless it is told otherwise."""
    from policy.rollouts.rollout import RolloutConfig
    from policy.sampler.protocol import Sampling

    context = min(options["context_tokens"] or sampler.context_tokens, sampler.context_tokens)
    longest = options["max_new_tokens"] or min(MAX_NEW_TOKENS, context // 2)
    return RolloutConfig(
        group_size=group_size,
        turns=turns,
        sampling=Sampling(temperature=options["temperature"], max_new_tokens=longest),
        context_tokens=context,
        templates=options["templates"],
    )
