"""Validation: rollouts that nothing is learned from, on problems that are not trained on."""

from collections.abc import Sequence

from drkernel_q.metric import bootstrap, fast_p, group_speeds, last_turn, pass_at_k
from drkernel_q.problem import Problem
from drkernel_q.trajectory import Group
from policy.rollouts.rollout import GroupOrder, Rollout
from policy.training.recipe import TrainConfig
from policy.training.step import collect
from policy.training.telemetry import FOLLOWED, Metrics, rollout_metrics


class Validation:
    """Every so many steps, the same problems with the weights of then."""

    def __init__(self, config: TrainConfig, problems: Sequence[Problem], rollout: Rollout) -> None:
        """Take the problems, and a rollout to do likewise; each validation is a run of its own, by its step."""
        self._config = config
        self._problems = problems
        self._rollout = rollout

    def is_due(self, step: int) -> bool:
        """Whether there is a validation after this step."""
        every = self._config.validation.every_steps
        return bool(every) and step % every == 0

    async def __call__(self, step: int) -> Metrics:
        """Roll out, and return Fast@p of the last turn and pass@k with 95 % intervals over problems."""
        training = self._rollout
        rolled = Rollout(
            training.sampler,
            training.judge,
            self._config.rollout.model_copy(update={"group_size": self._config.validation.samples}),
            run=f"{training.run}-validation-{step:06d}",
            seed=training.seed,
            store=training.store,
        )
        groups = await collect([GroupOrder(problem) for problem in self._problems], rolled)
        return validation_metrics([found.group for found in groups], self._config)


def validation_metrics(groups: Sequence[Group], config: TrainConfig) -> Metrics:
    """Describe validation rollouts; one interval a number, over problems."""
    samples = config.validation.samples
    everything = rollout_metrics(
        groups, turns=config.rollout.turns, samples=samples, lazy_below=config.laziness.tau, reward=config.reward
    )
    found = {name: value for name, value in everything.items() if name.startswith(("fast_", "rate/"))}
    rows = [_last(group, samples) for group in groups]
    for p in FOLLOWED if rows else ():
        estimate = bootstrap(rows, lambda drawn, p=p: fast_p(drawn, p))  # type: ignore[misc]
        found |= {f"fast_{p:g}": estimate.value, f"fast_{p:g}/low": estimate.low, f"fast_{p:g}/high": estimate.high}
        best = bootstrap(rows, lambda drawn, p=p: pass_at_k(drawn, samples, p))  # type: ignore[misc]
        name = f"pass_{p:g}_at_{samples}"
        found |= {name: best.value, f"{name}/low": best.low, f"{name}/high": best.high}
    return {f"validation/{name}": value for name, value in found.items()}


def _last(group: Group, samples: int) -> list[float | None]:
    return group_speeds(group, last_turn, samples)
