"""Frames of problems: sizes for a GPU and for the cpu device, and how inputs and parameters are made."""

import random

from drkernel_q.curriculum.part import Product, Recipe, Reduction, operands
from drkernel_q.curriculum.source import Frame

#: Sizes; few are powers of two, since masks are what is to be learned.
_ROWS = (2048, 3000, 4096, 6000)
_COLUMNS = (1000, 1500, 2000, 3000, 5000, 6000)
_SMALL_ROWS = (4, 5, 6, 7)
_SMALL_COLUMNS = (72, 84, 90, 100, 120)
#: Of products: multiples of 16, for aligned loads; inner lengths are none of 32.
_BATCH, _SMALL_BATCH = (1024, 2048, 3072), (20, 24, 36, 40)
_INNER, _SMALL_INNER = (528, 784, 1040, 1552), (40, 48, 56)
_WIDTH, _SMALL_WIDTH = (1008, 1536, 2064, 3072), (24, 36, 44, 52)


def draw_frame(draw: random.Random, recipe: Recipe) -> Frame:
    """Draw sizes for a recipe."""
    product = next((part for part in recipe if isinstance(part, Product)), None)
    if product is not None:
        return _product_frame(draw, recipe, product)
    reduction = next((part for part in recipe if isinstance(part, Reduction)), None)
    x = "torch.randn(rows, columns)"
    if reduction is not None:
        x = (
            f"4 * {x}"
            if "softmax" in reduction.name
            else f"{x} * (0.5 + torch.rand(rows, 1)) + 1.5 * torch.randn(rows, 1)"
        )
    names = operands(recipe)
    parameters = {name: "torch.randn(columns)" for name in names if name != "y"}
    return Frame(
        sizes={"rows": draw.choice(_ROWS), "columns": draw.choice(_COLUMNS)},
        small={"rows": draw.choice(_SMALL_ROWS), "columns": draw.choice(_SMALL_COLUMNS)},
        inputs={"x": x} | ({"y": "torch.randn(rows, columns)"} if "y" in names else {}),
        parameters=parameters,
        arguments=("columns",) if parameters else (),
    )


def _product_frame(draw: random.Random, recipe: Recipe, product: Product) -> Frame:
    names = operands(recipe)
    inputs = {"x": "torch.randn(rows, inner)"}
    parameters = {}
    if product.weight == "w":
        inputs["w"] = "torch.randn(inner, columns) / inner**0.5"
    else:
        parameters["weight"] = "torch.randn(columns, inner) / inner**0.5"
    if product.bias:
        parameters["bias"] = "torch.randn(columns)"
    parameters |= {name: "torch.randn(columns)" for name in names if name != "y"}
    used = ("inner", "columns") if "weight" in parameters else ("columns",)
    return Frame(
        sizes={"rows": draw.choice(_BATCH), "inner": draw.choice(_INNER), "columns": draw.choice(_WIDTH)},
        small={
            "rows": draw.choice(_SMALL_BATCH),
            "inner": draw.choice(_SMALL_INNER),
            "columns": draw.choice(_SMALL_WIDTH),
        },
        inputs=inputs | ({"y": "torch.randn(rows, columns)"} if "y" in names else {}),
        parameters=parameters,
        arguments=used if parameters else (),
        precision="tf32",
    )
