"""Source text of problems and solutions, from recipes and templates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from drkernel_q.curriculum.part import Product, Recipe, Reduction, Step, operands

if TYPE_CHECKING:
    from jinja2 import Environment

Fault = Literal["short_mask", "short_grid", "wrong_padding", "block_for_columns", "short_loop"]
Decoy = Literal["launched", "idle"]


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds the parts of a problem: sizes, inputs and parameters."""

    sizes: Mapping[str, int]
    small: Mapping[str, int]
    """Sizes for the cpu device."""
    inputs: Mapping[str, str]
    """How each input is made, by its name."""
    parameters: Mapping[str, str]
    """How each parameter is made, by its name."""
    arguments: tuple[str, ...]
    """Sizes that the constructor takes."""
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched, and what is wrong with it."""

    block: int = 1024
    warps: int | None = None
    tile: tuple[int, int, int] = (64, 64, 32)
    """Rows, columns and inner length of a product's tile."""
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Which parts one Triton kernel does, `recipe[first:last]`; torch does the others."""

    recipe: Recipe
    first: int = 0
    last: int | None = None
    launch: Launch = field(default_factory=Launch)

    @property
    def fused(self) -> Recipe:
        """What the kernel does."""
        return self.recipe[self.first : self.last]


def problem_source(recipe: Recipe, frame: Frame, summary: str) -> str:
    """Write a problem."""
    return _render(
        "problem.j2",
        frame,
        _torch_lines(recipe),
        summary=summary,
        sizes=frame.sizes,
        small=frame.small,
        precision=frame.precision,
    )


def torch_source(recipe: Recipe, frame: Frame, decoy: Decoy | None = None) -> str:
    """Write a solution in torch alone; a decoy has a kernel beside it that does nothing for the outputs."""
    if decoy is None:
        return _render("solution.j2", frame, _torch_lines(recipe), kernel=None)
    values = {"lines": [], "operands": [], "by_column": False, "fault": None}
    launch = (
        [] if decoy == "idle" else ["scratch = torch.empty_like(x)", "kernel[(1,)](x, scratch, x.numel(), BLOCK=1024)"]
    )
    return _render("solution.j2", frame, [*launch, *_torch_lines(recipe)], kernel="elementwise.j2", **values)


def solution_source(plan: Plan, frame: Frame) -> str:
    """Write a solution by one kernel and what torch does before and after it."""
    recipe, last = plan.recipe, len(plan.recipe) if plan.last is None else plan.last
    before = [f"x = {part.torch('x')}" for part in recipe[: plan.first]]
    after = [f"x = {part.torch('x' if place else 'out')}" for place, part in enumerate(recipe[last:])]
    template, values, launch = _kernel(plan)
    forward = _returned([*before, *launch, *(after or ["x = out"])])
    return _render("solution.j2", frame, forward, kernel=template, fault=plan.launch.fault, **values)


def _torch_lines(recipe: Recipe) -> list[str]:
    return _returned([f"x = {part.torch('x')}" for part in recipe])


def _returned(lines: list[str]) -> list[str]:
    return [*lines[:-1], "return " + lines[-1].removeprefix("x = ")]


def _kernel(plan: Plan) -> tuple[str, dict[str, Any], list[str]]:
    """Template, values and launch of what does the fused parts."""
    parts, names = plan.fused, operands(plan.fused)
    pointers = [name if name == "y" else f"self.{name}" for name in names]
    values: dict[str, Any]
    for place, part in enumerate(parts):
        before, after = _triton(parts[:place]), _triton(parts[place + 1 :])
        if isinstance(part, Reduction):
            values = {"before": before, "after": after, "operands": names}
            values |= {"reduction": part.lines, "padding": part.padding, "scalar": part.scalar}
            return "rows.j2", values, _row_launch(part, pointers, plan.launch)
        if isinstance(part, Product):
            values = {"after": after, "operands": names, "bias": part.bias, "transposed": part.transposed}
            return "product.j2", values, _product_launch(part, pointers, plan.launch)
    by_column = any(name != "y" for name in names)
    values = {"lines": _triton(parts), "operands": names, "by_column": by_column}
    return "elementwise.j2", values, _elementwise_launch(pointers, plan.launch, by_column=by_column)


def _triton(parts: Recipe) -> list[str]:
    return [part.triton() for part in parts if isinstance(part, Step)]


def _elementwise_launch(pointers: list[str], launch: Launch, *, by_column: bool) -> list[str]:
    grid = f"n // {launch.block}" if launch.fault == "short_grid" else f"triton.cdiv(n, {launch.block})"
    columns = ["x.shape[-1]"] if by_column else []
    given = ", ".join(["x", *pointers, "out", "n", *columns, f"BLOCK={launch.block}", *_warps(launch)])
    return ["out = torch.empty_like(x)", "n = x.numel()", f"kernel[({grid},)]({given})"]


def _row_launch(part: Reduction, pointers: list[str], launch: Launch) -> list[str]:
    out = "torch.empty(rows, device=x.device)" if part.scalar else "torch.empty_like(x)"
    block = "BLOCK=triton.next_power_of_2(columns)"
    given = ", ".join(["x", *pointers, "out", "columns", block, *_warps(launch)])
    return ["rows, columns = x.shape", f"out = {out}", f"kernel[(rows,)]({given})"]


def _product_launch(part: Product, pointers: list[str], launch: Launch) -> list[str]:
    rows, columns, inner = launch.tile
    bias = ["self.bias"] if part.bias else []
    blocks = [f"BM={rows}", f"BN={columns}", f"BK={inner}"]
    given = ", ".join(["x", part.weight, *bias, *pointers, "out", "M", "N", "K", *blocks, *_warps(launch)])
    return [
        "M, K = x.shape",
        f"N = {part.weight}.shape[{0 if part.transposed else 1}]",
        "out = torch.empty(M, N, device=x.device)",
        f"grid = (triton.cdiv(M, {rows}), triton.cdiv(N, {columns}))",
        f"kernel[grid]({given})",
    ]


def _warps(launch: Launch) -> list[str]:
    return [] if launch.warps is None else [f"num_warps={launch.warps}"]


def _render(template: str, frame: Frame, forward: Sequence[str], **values: Any) -> str:
    functional = any("F." in line for line in forward)
    return (
        _environment()
        .get_template(template)
        .render(
            functional=functional,
            inputs=frame.inputs,
            parameters=frame.parameters,
            arguments=frame.arguments,
            forward=forward,
            **values,
        )
    )


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("drkernel_q.curriculum"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Python source, not HTML
    )
