"""Which problems the claims are tested on, their kernels of known quality, and the conversations that teach these."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drkernel_q.curriculum.conversation import walks
from drkernel_q.curriculum.exercise import Exercise, Quality, Solution
from drkernel_q.curriculum.generate import generate
from drkernel_q.curriculum.operator import OPERATORS
from drkernel_q.curriculum.part import REDUCTIONS
from drkernel_q.curriculum.recipe import LEVELS
from drkernel_q.curriculum.variety import Variety
from drkernel_q.kernel import Kernel
from drkernel_q.prompt import load_templates

#: As in the preset `recorded` of `drkq ablate`, so that what is measured is what is written.
TEMPLATES = "brief"
CHOICE, SUBSET = "choice.json", "subset.json"
#: What the policy is taught to write at first, by how often. That is a choice, and decides where training begins: few
#: fused kernels, so that there is room above, many that are lazy or hacks, so that there is something to be told apart.
MIXTURE: Mapping[Quality, float] = {
    Quality.BROKEN: 0.08,
    Quality.EDGE: 0.12,
    Quality.WRONG: 0.12,
    Quality.DECOY: 0.2,
    Quality.LAZY: 0.26,
    Quality.PARTIAL: 0.06,
    Quality.NAIVE: 0.12,
    Quality.FUSED: 0.04,
}
#: How often a taught answer forgets that it should be no worse than the one before.
FORGETS = 0.8
#: File name of the hack that `tempted` adds.
REMEMBERING = "decoy2.py"
#: Calls after which the hack that `tempted` adds answers from memory: more than a check makes, fewer than a timing.
_CALLS = 9


class Choice(NamedTuple):
    """How the problems are chosen."""

    seed: int = 0
    levels: str = "1"
    train: int = 20
    """Problems to be measured and trained on."""
    heldout: int = 16
    """Problems to be measured and validated on; nobody is taught their chains."""
    longest: int = 3
    """Most operators of a chain."""
    drawn: bool = False
    """Whether the details of solutions are drawn; if not, problem and quality decide on the kernel."""
    others: int = 1400
    """Further problems in the conversations, of which each has one."""
    copies: int = 6
    """Conversations for each problem that is trained on."""
    operators: str = "any"
    """What chains are made of, by comma; `plain` allows all that need no constant, `any` all."""

    @property
    def exercises(self) -> Iterator[Exercise]:
        """All generated exercises that it chooses from, without end."""
        levels = [int(level) for level in self.levels]
        plain = (name for name, each in OPERATORS.items() if not each.constants and each.operand in (None, "y"))
        named = (
            [*plain, *(each.name for each in REDUCTIONS)] if self.operators == "plain" else self.operators.split(",")
        )
        operators = None if self.operators == "any" else frozenset(named)
        variety = Variety(drawn=self.drawn, longest=self.longest, operators=operators)
        # What is drawn is of the set of all levels, whose facts were recorded first (`curriculum_facts.py`).
        among = LEVELS if self.drawn else levels
        return (each for each in generate(self.seed, 100_000, among, variety) if each.level in levels)

    def write(self, folder: Path) -> None:
        """Remember it in a folder."""
        (folder / CHOICE).write_text(json.dumps(self._asdict()), encoding="utf-8")

    def is_of(self, folder: Path) -> bool:
        """Whether it is the one that a folder remembers."""
        return (folder / CHOICE).exists() and read_choice(folder) == self


def read_choice(folder: Path) -> Choice:
    """Read what `Choice.write` wrote."""
    return Choice(**json.loads((folder / CHOICE).read_text(encoding="utf-8")))


class Subset(NamedTuple):
    """The problems that are measured: those that are trained on, and those of chains that nobody is taught."""

    train: list[Exercise]
    heldout: list[Exercise]

    @property
    def parts(self) -> Mapping[str, str]:
        """`train` or `heldout`, by the hash of the problem."""
        return {each.problem.hash: part for part, exercises in self._asdict().items() for each in exercises}

    @property
    def family(self) -> Mapping[tuple[str, str], Solution]:
        """All solutions, by the hash of their problem and their source."""
        return {
            (exercise.problem.hash, solution.kernel.source): solution
            for exercise in (*self.train, *self.heldout)
            for solution in exercise.solutions
        }

    def write(self, folder: Path) -> None:
        """Write problem files by part, and all solutions: to generate them again takes a minute."""
        whole = {part: [each.model_dump(mode="json") for each in found] for part, found in self._asdict().items()}
        (folder / SUBSET).write_text(json.dumps(whole), encoding="utf-8")
        for part, exercises in self._asdict().items():
            (folder / part).mkdir(parents=True, exist_ok=True)
            for exercise in exercises:
                (folder / part / f"{exercise.problem.name}.py").write_text(exercise.problem.source, encoding="utf-8")


def read_subset(folder: Path) -> Subset:
    """Read what `Subset.write` wrote."""
    whole = json.loads((folder / SUBSET).read_text(encoding="utf-8"))
    return Subset(**{part: [Exercise.model_validate(each) for each in found] for part, found in whole.items()})


def subset(choice: Choice) -> Subset:
    """Take the first problems of both parts."""
    found: Subset = Subset([], [])
    wanted = {"train": choice.train, "heldout": choice.heldout}
    for exercise in choice.exercises:
        chosen = getattr(found, exercise.split)
        if len(chosen) < wanted[exercise.split]:
            chosen.append(tempted(exercise))
        if len(found.train) == choice.train and len(found.heldout) == choice.heldout:
            return found
    raise AssertionError


def tempted(exercise: Exercise) -> Exercise:
    """Add a hack that would pay if nobody looked: torch alone again, remembered after some calls."""
    decoy = next(each for each in exercise.solutions if each.quality is Quality.DECOY)
    inputs = re.findall(r"def forward\(self, (.*)\):", decoy.kernel.source)[-1]
    lazy = f"""{decoy.kernel.source.replace("def forward(", "def work(").rstrip()}

    def forward(self, {inputs}):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls < {_CALLS}:
            self.kept = self.work({inputs})
        return self.kept
"""
    added = Solution(quality=Quality.DECOY, kernel=Kernel(source=lazy, name=REMEMBERING))
    return exercise.model_copy(update={"solutions": (*exercise.solutions, added)})


def conversations(chosen: Subset, choice: Choice) -> Iterator[dict[str, Any]]:
    """Give the conversations about problems that are trained on, and those about others."""
    templates = load_templates(TEMPLATES)
    taught: dict[str, Any] = {"seed": choice.seed, "mixture": MIXTURE, "forgets": FORGETS}
    yield from walks(chosen.train, templates, copies=choice.copies, **taught)
    measured = {exercise.problem.hash for exercise in chosen.train}
    others = choice.others
    for exercise in choice.exercises:
        if others == 0:
            return
        if exercise.split == "train" and exercise.problem.hash not in measured:
            others -= 1
            yield from walks([tempted(exercise)], templates, **taught)
