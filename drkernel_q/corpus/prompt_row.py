"""RL prompt data in the public schema: what is asked, and the reference that answers are judged against."""

import re
from typing import Any

from drkernel_q.problem import Problem
from drkernel_q.prompt import Templates, first_turn


def prompt_row(problem: Problem, templates: Templates, *, source: str = "drkq") -> dict[str, Any]:
    """Write a problem as a row that `drkq eval --problem FILE#ROW` and public trainers read."""
    asked = [message.model_dump() for message in first_turn(problem, templates)]
    level = re.match(r"(?:l|level)?([1-4])[_/]", problem.name)
    return {
        "data_source": source,
        "prompt": asked,
        "ability": "kernel_optimization",
        "reward_model": {"ground_truth": problem.source, "style": "rule"},
        "extra_info": {
            "entry_point": "Model",
            "level": int(level[1]) if level else 0,
            "module_name": problem.name,
            "ops": problem.summary,
            "original_prompt": asked[-1]["content"],
            "repo_name": "",
            "type": "triton",
            "uuid": problem.hash,
        },
    }
