"""Mismatch rejection sampling (MRS): leave out what the trained policy would hardly have sampled in that way.

Sampler and trainer compute the same policy with other kernels, or other weights. For the sampled tokens k of a unit (a
trajectory, or a turn) with log ratio l_k = log pi_train(y_k) - log pi_sampler(y_k),

    keep  iff  |mean of l_k| <= log beta   and   l_k >= log eta for every k

so that the geometric mean of the likelihood ratios lies in [1 / beta, beta] and no token vetoes. Source: the article,
6.1, with the paper's beta = 1.001 and eta = 1e-4; band and veto have the same unit.

beta = 1.001 is a mean of 0.0009995 nat, eight times less than a step of bfloat16 at 1: log-probabilities are those of
fp32, and means are made in fp64. Nothing is clamped. A ratio that is not finite is no ratio of 1: it rejects.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from drkernel_q.value import Value

#: Upper ends, tokens, of the classes of length by which acceptance is reported: short means are noisier.
LENGTHS = (256, 1024, 4096)
#: Fewer bytes a number than this do not hold a log-probability well enough.
MIN_BYTES = 4

LogRatios = NDArray[np.floating[Any]]


class MismatchConfig(Value):
    """How far sampler and trainer may be apart."""

    enabled: bool = True
    """Whether anything is rejected; what would be is reported in any case."""
    beta: Annotated[float, Field(ge=1)] = 1.001
    """The geometric mean of the ratios lies in [1 / beta, beta]."""
    eta: Annotated[float, Field(ge=0, le=1)] = 1e-4
    """A single token with a smaller ratio rejects its unit; 0 never does."""
    scope: Literal["trajectory", "turn"] = "trajectory"
    """What is kept or left out as a whole: all sampled tokens of a trajectory, or of a turn."""


class MismatchDecision(NamedTuple):
    """Whether a unit is kept, and why not."""

    kept: bool
    """In the band, not vetoed, and finite; if MRS is off, True."""
    mean: float
    """Mean log ratio over the unit's tokens, nat; NaN where it is not finite or there are no tokens."""
    tokens: int
    """Sampled tokens of the unit."""
    outside: bool
    """Whether the geometric mean is out of the band."""
    vetoed: bool
    """Whether a token's ratio is below eta."""
    nonfinite: bool
    """Whether a log ratio is not finite, or there is none."""


def log_ratios(trained: ArrayLike, sampled: ArrayLike, mask: ArrayLike | None = None) -> LogRatios:
    """Return log pi_train - log pi_sampler of the sampled tokens, in fp64; what is masked may hold anything.

    Both have shape [tokens], natural logarithms, by the same temperature.

    Raises:
        ValueError: they are not of one length, or held in fewer than 32 bits.
    """
    mine, theirs = _wide(trained), _wide(sampled)
    if mine.shape != theirs.shape or mine.ndim != 1:
        raise ValueError(f"log-probabilities of shapes {mine.shape} and {theirs.shape}")
    if mask is not None:
        chosen = np.asarray(mask, dtype=bool)
        mine, theirs = mine[chosen], theirs[chosen]
    with np.errstate(invalid="ignore"):  # -inf less -inf is NaN, which rejects
        return mine - theirs


def decide(ratios: Sequence[LogRatios], config: MismatchConfig | None = None) -> list[MismatchDecision]:
    """Decide about one trajectory from the log ratios of each of its turns, each of shape [tokens].

    Returns one decision a turn; with the scope `trajectory` they are the same, over the tokens of all turns pooled.
    """
    config = config or MismatchConfig()
    if config.scope == "turn" or not ratios:
        return [_unit(turn, config) for turn in ratios]
    return [_unit(np.concatenate(ratios), config)] * len(ratios)


def telemetry(units: Sequence[MismatchDecision], trained: ArrayLike, sampled: ArrayLike) -> dict[str, float]:
    """Summarise a step: its units (a trajectory's once), and the log-probabilities of all their tokens, [tokens].

    Keys: `acceptance` (also by length) and `veto` are shares of the units, `nonfinite` their number, `empty_batch` is 1
    where none is kept; `abs_mean` and its 95th percentile are of |mean l|, nat. Over tokens, without those that are not
    finite: `k1` = E[-l], `k3` = E[rho - 1 - l] and `chi2` = E[rho^2] - 1 estimate how far the sampler is from the
    trainer; `ess` is the effective share, E[rho]^2 / E[rho^2]; `ppl_sampler` and `ppl_train` are the perplexities of
    the sampled tokens under each.
    """
    found = {
        "acceptance": _share([unit.kept for unit in units]),
        "veto": _share([unit.vetoed for unit in units]),
        "nonfinite": float(sum(unit.nonfinite for unit in units)),
        "empty_batch": float(bool(units) and not any(unit.kept for unit in units)),
    }
    for low, high in zip((0, *LENGTHS), (*LENGTHS, math.inf), strict=True):
        kept = [unit.kept for unit in units if low < unit.tokens <= high]
        if kept:
            found[f"acceptance/{low}-{high:g}"] = _share(kept)
    distances = [abs(unit.mean) for unit in units if not unit.nonfinite]
    if distances:
        found |= {"abs_mean": float(np.mean(distances)), "abs_mean_p95": float(np.percentile(distances, 95))}
    return {f"mrs/{name}": value for name, value in (found | _of_tokens(_wide(trained), _wide(sampled))).items()}


def _unit(ratios: LogRatios, config: MismatchConfig) -> MismatchDecision:
    values = np.asarray(ratios, dtype=np.float64)
    finite = bool(values.size) and bool(np.isfinite(values).all())
    vetoed = bool(values.size) and config.eta > 0 and bool((values < math.log(config.eta)).any())
    # Exact, so that the order in which turns are pooled, or packed, decides nothing.
    mean = math.fsum(values) / values.size if finite else math.nan
    outside = finite and abs(mean) > math.log(config.beta)
    kept = not config.enabled or (finite and not outside and not vetoed)
    return MismatchDecision(kept, mean, values.size, outside, vetoed, not finite)


def _of_tokens(mine: LogRatios, theirs: LogRatios) -> dict[str, float]:
    finite = np.isfinite(mine) & np.isfinite(theirs)
    if not finite.any():
        return {}
    mine, theirs = mine[finite], theirs[finite]
    logs = mine - theirs
    with np.errstate(over="ignore"):
        ratios = np.exp(logs)
        square = float(np.mean(ratios**2))
        return {
            "k1": float(-np.mean(logs)),
            "k3": float(np.mean(ratios - 1 - logs)),
            "chi2": square - 1,
            "ess": float(np.mean(ratios)) ** 2 / square,
            "ppl_sampler": float(np.exp(-np.mean(theirs))),
            "ppl_train": float(np.exp(-np.mean(mine))),
        }


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


def _wide(values: ArrayLike) -> LogRatios:
    array = np.asarray(values)
    if array.dtype.kind == "f" and array.dtype.itemsize < MIN_BYTES:
        raise ValueError(f"log-probabilities in {array.dtype}: the band of MRS needs 32 bits or more")
    return array.astype(np.float64)
