"""Writer: what commands that sample say in common about how a model writes."""

from collections.abc import Mapping
from typing import Any

from policy.rollout import RolloutConfig
from policy.sampler.protocol import Sampler, Sampling

#: Longest answer when nobody says another.
MAX_NEW_TOKENS = 8192


def rollout_config(options: Mapping[str, Any], sampler: Sampler, *, turns: int, group_size: int) -> RolloutConfig:
    """Resolve the options of a command; an answer takes half of the context at most, unless it is told otherwise."""
    context = min(options["context_tokens"] or sampler.context_tokens, sampler.context_tokens)
    longest = options["max_new_tokens"] or min(MAX_NEW_TOKENS, context // 2)
    return RolloutConfig(
        group_size=group_size,
        turns=turns,
        sampling=Sampling(temperature=options["temperature"], max_new_tokens=longest),
        context_tokens=context,
        templates=options["templates"],
    )
