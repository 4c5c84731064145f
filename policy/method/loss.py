"""The clipped policy loss, normalised by one number for the whole step.

For a row with the advantage A, and each of its sampled tokens k, with rho_k = exp(log pi(y_k) - log pi_behave(y_k)),

    L = -(1 / Z) * sum over rows and tokens of  m_k * min(rho_k * A, clip(rho_k, 1 - low, 1 + high) * A)

and for A < 0 no token costs more than -c * A (dual clip). m_k is 0 in rows that MRS or PRS rejected. In the first step
after the sampling rho is 1 and the gradient is -A * grad log pi, that of REINFORCE. Source: PPO, with the paper's
low = 0.2, high = 0.28, c = 3.

Z is one number, the same in every micro-batch and on every rank, so that how a step is cut changes nothing:

    sequence        rows with a reward, the rejected ones included: to reject one makes the step smaller, and the weight
                    of no other row larger
    token           sampled tokens that were not rejected, over all rows: every token weighs the same
    sequence_token  as `sequence`, of the mean over each row's tokens: long answers weigh less by the token
"""

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from drkernel_q.value import Value
from policy.method.batch import MicroBatch, TurnRow

#: Log ratios beyond this are far outside the clip; as powers they would be infinite, and their gradient no number.
MAX_LOG_RATIO = 20.0


class LossConfig(Value):
    """The policy loss."""

    behave: Literal["decoupled", "bypass"] = "decoupled"
    """What rho is taken against: the log-probabilities as the trainer had them before the step (`decoupled`), or those
    of the sampler (`bypass`)."""
    clip_low: Annotated[float, Field(ge=0, le=1)] = 0.2
    """rho counts down to 1 less this."""
    clip_high: Annotated[float, Field(ge=0)] = 0.28
    """rho counts up to 1 plus this."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """For a negative advantage rho counts up to this; without it, without bound."""
    normaliser: Literal["sequence", "token", "sequence_token"] = "sequence"
    """What the sum is divided by; see `policy.method.loss`."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """A constant that Z is multiplied with (the released code of the paper has 1000)."""


class PolicyLoss(NamedTuple):
    """The share of one micro-batch in the loss, and sums over its tokens that were learned from."""

    loss: Tensor
    """Scalar, with gradient; the sum over all micro-batches is the loss of the step."""
    tokens: Tensor
    """How many there are."""
    clipped: Tensor
    """Those whose gradient the clip takes away."""
    dual_clipped: Tensor
    """Those whose gradient the dual clip takes away."""
    divergence: Tensor
    """Sum of rho - 1 - log rho, nat: an estimate of how far the policy has moved from `behave`."""


def normaliser(rows: Iterable[TurnRow], config: LossConfig | None = None) -> float:
    """Return Z for all rows of a step, over all ranks; at least 1 times the scale."""
    config = config or LossConfig()
    if config.normaliser == "token":
        count = sum(len(row.output_ids) for row in rows if row.kept)
    else:
        count = sum(1 for _ in rows)
    return max(count, 1) * config.scale


def policy_loss(
    logprobs: Tensor, behave: Tensor, batch: MicroBatch, z: float, config: LossConfig | None = None, replicas: int = 1
) -> PolicyLoss:
    """Return the share of a micro-batch in the loss.

    Args:
        logprobs: [B, L - 1], of the policy, with gradient (`policy.method.logprob.score`).
        behave: [B, L - 1], what they are compared with, without gradient.
        batch: which tokens were sampled and kept, and the advantages.
        z: the one normaliser of the step, from `normaliser`.
        config: the formula.
        replicas: ranks over which gradients are averaged afterwards, as DDP and FSDP do; the average of the ranks' is
            then the gradient of the step.
    """
    config = config or LossConfig()
    learned = batch.learned
    # Replaced before any arithmetic: what is masked may be NaN, and 0 * NaN is no 0 in a gradient.
    logs = torch.where(learned, logprobs - behave.detach(), 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = logs.exp()
    advantages = batch.advantages.to(ratio.dtype)[:, None]
    plain, clipped = ratio * advantages, ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages
    gain = torch.minimum(plain, clipped)
    floor = torch.full_like(gain, -torch.inf)
    if config.dual_clip is not None:
        floor = torch.where(advantages < 0, config.dual_clip * advantages, floor)
    dual = learned & (gain < floor)
    gain = torch.where(dual, floor, gain)
    weights = learned.to(gain.dtype)
    if config.normaliser == "sequence_token":
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1)
    return PolicyLoss(
        loss=-(gain * weights).sum() * (replicas / z),
        tokens=learned.sum(),
        clipped=(learned & (clipped < plain)).sum(),
        dual_clipped=dual.sum(),
        divergence=(ratio - 1 - logs).detach().mul(learned).sum(),
    )
