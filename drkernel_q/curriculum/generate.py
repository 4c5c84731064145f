"""Generated problems and their solutions: the same for the same seed, no chain and no source twice."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from drkernel_q.curriculum.exercise import Exercise, Quality, Solution, title
from drkernel_q.curriculum.frame import draw_frame
from drkernel_q.curriculum.part import Product, Recipe, Reduction, Step, names
from drkernel_q.curriculum.recipe import LEVELS, corrupted, draw_recipe, reach
from drkernel_q.curriculum.source import Fault, Frame, Launch, Plan, problem_source, solution_source, torch_source
from drkernel_q.curriculum.variety import FULL, Variety
from drkernel_q.errors import BadSettings
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem

#: How often each level comes, in turn.
_TURNS = (1, 2, 3, 1, 2)
#: Good launches of each level.
_LAUNCHES: dict[int, tuple[Launch, ...]] = {
    1: (Launch(1024), Launch(2048, 8), Launch(4096, 8), Launch(1024, 8), Launch(2048)),
    2: (Launch(warps=4), Launch(warps=8), Launch(warps=16)),
    3: (
        Launch(tile=(64, 64, 32)),
        Launch(tile=(128, 64, 32)),
        Launch(tile=(64, 128, 32)),
        Launch(tile=(128, 128, 32), warps=8),
    ),
}
#: Launches that work, and waste the device.
_NAIVE: dict[int, tuple[Launch, ...]] = {
    1: (Launch(32), Launch(64)),
    2: (Launch(warps=1),),
    3: (Launch(tile=(16, 16, 16)), Launch(tile=(32, 16, 16))),
}
#: A grid that is cut short must leave something out, at sizes of both kinds.
_SHORT_BLOCK = 256
#: Chains that are drawn in vain before no other one is looked for.
MOST_DRAWS = 10_000
#: Share of the outputs that must depend on what a kernel writes.
_LEAST_REACH = 0.65

Range = tuple[int, int]


class Variants(NamedTuple):
    """A recipe, and what its solutions make of it."""

    recipe: Recipe
    wrong: Recipe
    partial: Range
    """Parts that the kernel of a partial solution does, from and up to."""
    lazy: Range


def generate(seed: int, count: int, levels: Sequence[int] = LEVELS, variety: Variety = FULL) -> Iterator[Exercise]:
    """Generate `count` exercises; the first of them are the same whatever the count.

    Raises:
        BadSettings: what is allowed leaves no other chain, as far as drawing many shows.
    """
    turns = [level for level in _TURNS if level in levels]
    chains: set[tuple[int, tuple[str, ...]]] = set()
    sources: set[str] = set()
    for number in range(1, count + 1):
        level = turns[(number - 1) % len(turns)]
        draw = random.Random(f"{seed}/{level}/{number}")  # noqa: S311 - reproducible, not secret
        draws = (_draw_new(draw, number, level, variety, chains, sources) for _ in range(MOST_DRAWS))
        exercise = next((each for each in draws if each is not None), None)
        if exercise is None:
            raise BadSettings(
                f"There are hardly more than {number - 1} problems of level {level} with chains that are allowed here."
            )
        yield exercise


def _draw_new(
    draw: random.Random,
    number: int,
    level: int,
    variety: Variety,
    chains: set[tuple[int, tuple[str, ...]]],
    sources: set[str],
) -> Exercise | None:
    """Draw an exercise; None if its chain or one of its sources was there before, or not every quality can be had."""
    recipe = draw_recipe(draw, level)
    if not variety.allows(names(recipe)):
        return None
    habit = variety.habit(draw)
    wrong, parts = corrupted(habit, recipe), _parts(habit, recipe)
    if wrong is None or parts is None or (level, names(recipe)) in chains:
        return None
    frame = draw_frame(draw, recipe)
    exercise = _exercise(habit, number, level, Variants(recipe, wrong, *parts), frame)
    new = {solution.kernel.source for solution in exercise.solutions}
    if new & sources:
        return None
    chains.add((level, names(recipe)))
    sources |= new
    return exercise


def _exercise(draw: random.Random, number: int, level: int, variants: Variants, frame: Frame) -> Exercise:
    recipe = variants.recipe
    chain = names(recipe)
    source = problem_source(recipe, frame, title(level, recipe))
    solutions = tuple(
        Solution(quality=quality, kernel=Kernel(source=text, name=f"{quality.value}{place}.py"))
        for quality, texts in _sources(draw, level, variants, frame).items()
        for place, text in enumerate(dict.fromkeys(texts), 1)
    )
    name = f"l{level}_{number:04}_{'_'.join(chain)}"
    return Exercise(level=level, chain=chain, problem=Problem(name=name, source=source), solutions=solutions)


def _sources(draw: random.Random, level: int, variants: Variants, frame: Frame) -> dict[Quality, list[str]]:
    recipe = variants.recipe
    first, second = draw.sample(_LAUNCHES[level], 2)
    plain = solution_source(Plan(recipe, launch=first), frame)
    fault = draw.choice(_faults(recipe, frame))
    return {
        Quality.BROKEN: [_broken(draw, plain)],
        Quality.EDGE: [solution_source(Plan(recipe, launch=_faulty(first, fault)), frame)],
        Quality.WRONG: [solution_source(Plan(variants.wrong, launch=first), frame)],
        Quality.FALLBACK: [torch_source(recipe, frame)],
        Quality.DECOY: [torch_source(recipe, frame, draw.choice(("launched", "idle")))],
        Quality.LAZY: [solution_source(Plan(recipe, *variants.lazy, launch=_LAUNCHES[1][0]), frame)],
        Quality.PARTIAL: [solution_source(Plan(recipe, *variants.partial, launch=second), frame)],
        Quality.NAIVE: [solution_source(Plan(recipe, launch=draw.choice(_NAIVE[level])), frame)],
        Quality.FUSED: [plain, solution_source(Plan(recipe, launch=second), frame)],
    }


def _parts(draw: random.Random, recipe: Recipe) -> tuple[Range, Range] | None:
    """Which parts the kernel of a partial solution does, and which single step that of a lazy one.

    Most outputs must depend on what a kernel writes, or the judge would doubt it; None where none will do.
    """
    whole = len(recipe)
    ranges = [(0, cut) for cut in range(1, whole)] + [(cut, whole) for cut in range(1, whole)]
    lasting = [each for each in ranges if reach(recipe, each[1]) > _LEAST_REACH]
    largest = next((place for place, part in enumerate(recipe) if not isinstance(part, Step)), None)
    telling = [each for each in lasting if largest is None or each[0] <= largest < each[1]]
    if not lasting:
        return None
    chosen = draw.choice(telling or lasting)
    steps = [(place, place + 1) for place, part in enumerate(recipe) if isinstance(part, Step)]
    single = [step for step in steps if step != chosen and reach(recipe, step[1]) > _LEAST_REACH]
    return (chosen, draw.choice(single)) if single else None


def _faults(recipe: Recipe, frame: Frame) -> list[Fault]:
    """Edges that can be missed in a kernel for the whole recipe."""
    reduction = next((part for part in recipe if isinstance(part, Reduction)), None)
    if any(isinstance(part, Product) for part in recipe):
        return ["short_mask", "short_loop"]
    if reduction is None:
        elements = [sizes["rows"] * sizes["columns"] for sizes in (frame.sizes, frame.small)]
        cut = all(count % _SHORT_BLOCK and count > _SHORT_BLOCK for count in elements)
        return ["short_mask", "short_grid"] if cut else ["short_mask"]
    if any("columns" in line for line in reduction.lines):
        return ["short_mask", "block_for_columns"]
    exponential = any("tl.exp" in line for line in reduction.lines)
    return ["short_mask", "wrong_padding"] if exponential and recipe[0] is reduction else ["short_mask"]


def _faulty(launch: Launch, fault: Fault) -> Launch:
    block = _SHORT_BLOCK if fault == "short_grid" else launch.block
    return Launch(block=block, warps=launch.warps, tile=launch.tile, fault=fault)


def _broken(draw: random.Random, source: str) -> str:
    """Break a source by one slip of the kind that people make."""
    slips = (
        ("class ModelNew(nn.Module):", "class ModelNew(nn.Module)"),
        ("@triton.jit\ndef kernel(", "@triton.jit\ndef kernel(("),
        ("tl.store(out_ptr +", "tl.store(output_ptr +"),
        ("tl.store(out_ptr +", "tl.write(out_ptr +"),
        ("tl.program_id(0)", "tl.program(0)"),
        ("x_ptr, ", ""),
        ("import triton.language as tl\n", ""),
    )
    old, new = draw.choice(slips)
    return source.replace(old, new, 1)
