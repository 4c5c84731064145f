"""Prompt: what a model is asked first, and what it is told after a turn; from templates that anyone can replace.

A set of templates is a folder with `first.j2` and `feedback.j2` (user messages) and, if there is to be a system
message, `system.j2`. What they may use is written in docs/reference/prompts.md; a name that is not there is an error.
"""

import re
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, TemplateError, TemplateNotFound

from drkernel_q.errors import BadSettings
from drkernel_q.feedback import feedback
from drkernel_q.problem import Problem
from drkernel_q.trajectory import Message, Turn

#: Our own sets, one folder each.
FOLDER = Path(__file__).parent / "templates"
_FENCES = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)


class Templates:
    """A set of templates, compiled."""

    def __init__(self, folder: Path) -> None:
        """Use `load_templates`."""
        self.folder = folder
        # A set may include parts of ours, such as "default/example.j2". Models read text, not HTML.
        self._environment = Environment(  # noqa: S701
            loader=FileSystemLoader([folder, FOLDER]),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["fenced"] = fenced
        self._templates = {name: self._compile(f"{name}.j2") for name in ("first", "feedback")}
        if (folder / "system.j2").is_file():
            self._templates["system"] = self._compile("system.j2")

    def message(self, role: Literal["system", "user"], name: str, **values: Any) -> Message | None:
        """Render a message; None when the set has no such template.

        Raises:
            BadSettings: the template uses what there is not.
        """
        if name not in self._templates:
            return None
        try:
            return Message(role=role, content=self._templates[name].render(**values).strip())
        except TemplateError as error:
            raise BadSettings(f"The template {self.folder / name}.j2 cannot be filled in: {error.message}.") from error

    def _compile(self, file: str) -> Template:
        if not (self.folder / file).is_file():
            raise BadSettings(f"The folder {self.folder} is no set of templates: it has no {file}.")
        try:
            return self._environment.get_template(file)
        except TemplateNotFound as error:
            raise BadSettings(f"The template {self.folder / file} needs {error.name}, which is not there.") from error
        except TemplateError as error:
            raise BadSettings(f"The template {self.folder / file} is wrong: {error.message}.") from error


def builtin_templates() -> list[str]:
    """Name our own sets."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def load_templates(name: str | Path = "default") -> Templates:
    """Load a set of ours by its name, or anybody's by its folder.

    Raises:
        BadSettings: there is no such set, or one of its templates is wrong.
    """
    if str(name) in builtin_templates():
        return Templates(FOLDER / str(name))
    if not Path(name).is_dir():
        known = ", ".join(builtin_templates())
        raise BadSettings(f"There is no set of templates `{name}`; there are {known}, or name a folder.")
    return Templates(Path(name))


def first_turn(problem: Problem, templates: Templates) -> tuple[Message, ...]:
    """Ask for a first kernel: a system message, if the set has one, and a user message."""
    system = templates.message("system", "system", problem=problem)
    first = templates.message("user", "first", problem=problem)
    return tuple(message for message in (system, first) if message is not None)


def feedback_turn(turn: Turn, templates: Templates) -> Message:
    """Tell what became of a turn, from the facts of its evaluation, and ask for a better kernel."""
    evaluation = turn.evaluation
    message = templates.message(
        "user",
        "feedback",
        number=turn.number,
        kernel=turn.kernel,
        cut=turn.finish_reason == "length",
        judged=evaluation is not None,
        correct=evaluation is not None and evaluation.honest_and_correct,
        facts="" if evaluation is None else feedback(evaluation),
    )
    assert message is not None
    return message


def fenced(text: str, language: str = "") -> str:
    """Put `text` into a fenced block of Markdown whose fence is longer than any that it holds itself."""
    longest = max((len(fence) for fence in _FENCES.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
