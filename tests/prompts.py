"""Prompts as they were approved. `python -m tests.prompts` writes them anew; then read the difference."""

from pathlib import Path

from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.prompt import builtin_templates, feedback_turn, first_turn, load_templates
from drkernel_q.trajectory import Turn
from tests.values import an_evaluation

FOLDER = Path(__file__).parent / "unit" / "prompts"
PROBLEM = Problem(
    name="double",
    source='"""Twice the input."""\n\nimport torch\n\n\nclass Model(torch.nn.Module):\n'
    "    def forward(self, x):\n        return 2 * x\n\n\ndef get_inputs():\n    return [torch.randn(64)]\n",
)


def a_turn(number: int = 1, *, source: str | None = "k", **more: object) -> Turn:
    kernel = None if source is None else Kernel(source=source)
    return Turn.model_validate({"number": number, "prompt": (), "completion": "", "kernel": kernel} | more)


TURNS = {
    "no_kernel": a_turn(source=None),
    "cut_off": a_turn(source=None, finish_reason="length"),
    "not_judged": a_turn(),
    "correct": a_turn(evaluation=an_evaluation(speedup=2.0, profile_ratio=0.5)),
    "wrong": a_turn(evaluation=an_evaluation("wrong_value")),
    "rejected": a_turn(evaluation=an_evaluation(integrity="rejected")),
    "fenced_error": a_turn(evaluation=an_evaluation("runtime_error", correctness=None, error="```\nValueError: odd")),
}


def rendered() -> dict[str, str]:
    """Text of every prompt, by file name."""
    texts = {}
    for name in builtin_templates():
        templates = load_templates(name)
        first = first_turn(PROBLEM, templates)
        texts[f"{name}_first.txt"] = "\n\n".join(f"[{message.role}]\n{message.content}" for message in first)
        for case, turn in TURNS.items():
            texts[f"{name}_{case}.txt"] = feedback_turn(turn, templates).content
    return texts


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in rendered().items():
        (FOLDER / file).write_text(text + "\n")
