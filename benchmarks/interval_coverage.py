"""How often the 95 % interval of a speedup holds the truth, over simulated times.

    PYTHONPATH=. python benchmarks/interval_coverage.py [RUNS]

Prints one row for each kind of noise and plan: coverage, width (median, in percent of the speedup) and spread of the
estimate (standard deviation and median error, percent) of `drkernel_q.speedup.speedup_interval`; beside it, coverage
and spread of other ways: Student's t around the mean, around the median, and around the Hodges-Lehmann median (over the
means of all pairs) of the block ratios, and the bootstrap over blocks and calls that drkq used before.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drkernel_q.speedup import speedup_interval, student_t

Array = NDArray[np.float64]

#: Fraction of the speedup; every kind of noise is each side's own.
TRUTH = 2.0
BLOCKS = (3, 5, 6, 9)
CALLS = (4, 10, 18)
RESAMPLES = 500


class Noise(NamedTuple):
    """What disturbs times: standard deviations are fractions, the rest probabilities."""

    block: float = 0.0
    call: float = 0.0
    slow_calls: float = 0.0
    """Calls that take 1.5 to 10 times as long."""
    lost_blocks: float = 0.0
    """Blocks that take 1.05 to 1.5 times as long."""
    heavy: bool = False
    """Whether the noise of blocks is Student's t with 3 degrees of freedom, and not normal."""


NOISES = {
    "blocks": Noise(block=0.005, call=0.002),
    "calls": Noise(call=0.02, slow_calls=0.02),
    "both": Noise(block=0.005, call=0.02, slow_calls=0.02),
    "blocks, heavy tails": Noise(block=0.005, call=0.01, slow_calls=0.02, heavy=True),
    "3 % of blocks lost": Noise(block=0.003, call=0.01, slow_calls=0.02, lost_blocks=0.03),
}


def times(generator: np.random.Generator, noise: Noise, shape: tuple[int, int], milliseconds: float) -> Array:
    """Draw the times of one side, blocks by calls."""
    blocks = (shape[0], 1)
    spread = generator.standard_t(3, blocks) / np.sqrt(3) if noise.heavy else generator.normal(size=blocks)
    lost = np.where(generator.random(blocks) < noise.lost_blocks, generator.uniform(1.05, 1.5, blocks), 1.0)
    slow = np.where(generator.random(shape) < noise.slow_calls, generator.uniform(1.5, 10, shape), 1.0)
    drawn: Array = milliseconds * np.exp(noise.block * spread + generator.normal(0, noise.call, shape)) * lost * slow
    return drawn


def current(reference: Array, candidate: Array) -> tuple[float, float, float]:
    """The way that drkq uses."""
    return speedup_interval(reference.tolist(), candidate.tolist())


def around(center: Callable[[Array], float]) -> Callable[[Array, Array], tuple[float, float, float]]:
    """Student's t around `center` of the log ratios of blocks."""

    def way(reference: Array, candidate: Array) -> tuple[float, float, float]:
        ratios = np.log(np.median(reference, axis=1) / np.median(candidate, axis=1))
        reach = student_t(len(ratios) - 1) * ratios.std(ddof=1) / np.sqrt(len(ratios))
        middle = float(center(ratios))
        return float(np.exp(middle)), float(np.exp(middle - reach)), float(np.exp(middle + reach))

    return way


def hodges_lehmann(values: Array) -> float:
    """The median over the means of all pairs, each value with itself included."""
    first, second = np.triu_indices(len(values))
    return float(np.median((values[first] + values[second]) / 2))


def bootstrap(reference: Array, candidate: Array) -> tuple[float, float, float]:
    """The median over blocks, with an interval that resamples blocks and the calls within them."""
    generator = np.random.default_rng(0)
    blocks, calls = reference.shape
    drawn = []
    for side in (reference, candidate):
        picks = generator.integers(0, calls, (RESAMPLES, blocks, calls))
        drawn.append(np.median(np.take_along_axis(side[None], picks, axis=2), axis=2))
    ratios = np.log(drawn[0] / drawn[1])
    chosen = generator.integers(0, blocks, (RESAMPLES, blocks))
    low, high = np.percentile(np.median(np.take_along_axis(ratios, chosen, axis=1), axis=1), [2.5, 97.5])
    middle = np.median(np.log(np.median(reference, axis=1) / np.median(candidate, axis=1)))
    return float(np.exp(middle)), float(np.exp(low)), float(np.exp(high))


WAYS = {
    "drkq": current,
    "mean": around(np.mean),
    "median": around(np.median),
    "Hodges-Lehmann": around(hodges_lehmann),
    "bootstrap": bootstrap,
}


def row(noise: Noise, blocks: int, calls: int, runs: int) -> list[str]:
    """Simulate `runs` timings by every way; return the cells of a row."""
    generator = np.random.default_rng([blocks, calls])
    found = np.empty((len(WAYS), runs, 3))
    for run in range(runs):
        sides = [times(generator, noise, (blocks, calls), ms) for ms in (TRUTH, 1.0)]
        for number, way in enumerate(WAYS.values()):
            found[number, run] = way(*sides)
    points, low, high = np.log(found / TRUTH).transpose(2, 0, 1)
    covered = np.mean((low <= 0) & (high >= 0), axis=1)
    spread = 100 * points.std(axis=1)
    off = 100 * np.median(np.abs(points), axis=1)
    cells = [f"{covered[0]:.3f}", f"{100 * np.median(high[0] - low[0]):.2f}", f"{spread[0]:.2f} / {off[0]:.2f}"]
    return cells + [f"{covered[n]:.3f}, {spread[n]:.2f} / {off[n]:.2f}" for n in range(1, len(WAYS))]


def main() -> None:
    """Print the table; the argument is the number of simulated timings a row."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print("| noise | blocks | calls | coverage | width, % | spread, % |", " | ".join(list(WAYS)[1:]), "|")
    print("|---" * (6 + len(WAYS) - 1) + "|")
    for name, noise in NOISES.items():
        for blocks in BLOCKS:
            for calls in CALLS:
                cells = row(noise, blocks, calls, runs)
                print(f"| {name} | {blocks} | {calls} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
