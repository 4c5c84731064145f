"""Published: Fast@p of other models, as the article prints them, to stand beside ours and never to be mixed with it.

Source: tables 1 and 2 of the article (KernelBench levels 1 to 3; eager and torch.compile as the reference), percent, at
1, 1.2, 1.5 and 2. They were measured with another judge and on other machines.
"""

from typing import NamedTuple

from drkernel_q.evaluation import Baseline
from drkernel_q.metric import THRESHOLDS

#: Levels that the tables have.
LEVELS = (1, 2, 3)

_EAGER = """
GPT-5 | 19.5/16.5/12.5/11.0 | 46.7/28.6/13.1/3.0 | 21/12/4/2
Claude-4.5-Sonnet | 15.5/13.5/11/8.5 | 50/26.7/9.2/1.8 | 21/11/5/4
DeepSeek-V3.2-Thinking | 7.5/5.5/4.5/4 | 11/6.5/2.5/.5 | 2/1/0/0
GLM-4.7 | 19.4/17.2/13.1/10.4 | 30/20.5/8.5/3.5 | 5/2/2/2
Qwen3-8B | 5.8/4.8/4.1/3.4 | 13/5.6/2/1.1 | 5.7/.2/0/0
Qwen3-32B | 6.1/4.9/4.3/4 | 14/9.4/2.4/.2 | 3.5/0/0/0
Qwen3-Coder-30B-A3B | 6/5.2/5.1/3.8 | 12.6/5/1.5/.3 | 7/1/0/0
AutoTriton | 4.5/3.6/2.8/2.1 | 30.6/9.2/2.6/.5 | 7.5/0/0/0
Cold-Start-8B | 7.5/6.6/5/4.3 | 8.8/5.6/1.8/.4 | .5/0/0/0
DR.KERNEL-8B | 15.9/12.8/10.9/8.4 | 46/20/5/1.5 | 10.8/1/0/0
DR.KERNEL-14B | 20.3/16.9/13.2/11.6 | 49.2/25.6/7.4/2.1 | 8.8/1.2/.2/0
DR.KERNEL-14B-STTS | 24.1/18.8/15.3/12.8 | 59.8/31.6/9.6/3 | 17.1/3/.2/0
DR.KERNEL-14B-STTS† | 39.3/25.1/20.4/17.6 | 80.9/47.8/23.6/12.5 | 29.8/7.3/.5/0
"""
#: Level 1 of DR.KERNEL-8B is printed so; more kernels cannot be twice as fast than are 1.5 times as fast.
_COMPILE = """
GPT-5 | 18.6/8/6.5/5.5 | 22.1/3.6/1.5/1 | 14/4/3/1
Claude-4.5-Sonnet | 10/2.2/2/1.8 | 20.5/3/0/0 | 12/3.5/.5/0
DR.KERNEL-8B | 16/3/1.5/8.4 | 20.6/.8/0/0 | 7.2/2.3/0/0
DR.KERNEL-14B | 17.8/5/3.3/2.5 | 23.5/1.9/0/0 | 9.2/3/0/0
"""


class Published(NamedTuple):
    """One row of a table of the article."""

    model: str
    shares: dict[tuple[int, float], float]
    """Fast@p by level and p, from 0 to 1."""


def published(baseline: Baseline) -> list[Published]:
    """Return the rows of the article's table for a baseline; none where it has no table."""
    tables = {Baseline.EAGER: _EAGER, Baseline.COMPILE: _COMPILE}
    return [_row(line) for line in tables.get(baseline, "").strip().splitlines()]


def _row(line: str) -> Published:
    model, *levels = (cell.strip() for cell in line.split("|"))
    shares = {
        (level, p): float(number) / 100
        for level, cell in zip(LEVELS, levels, strict=True)
        for p, number in zip(THRESHOLDS, cell.split("/"), strict=True)
    }
    return Published(model, shares)
