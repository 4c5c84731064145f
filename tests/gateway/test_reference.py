"""docs/reference/gateway.md names every route, every field of an order, and every limit with its default."""

import re

from drkernel_q.gateway.app import create_app
from drkernel_q.gateway.kernelgym import GymTask
from drkernel_q.gateway.limits import Limits
from drkernel_q.gateway.order import Order
from drkernel_q.settings import Settings
from tests.need import ROOT

PAGE = (ROOT / "docs/reference/gateway.md").read_text(encoding="utf-8")


def test_every_route_is_in_the_reference() -> None:
    paths = create_app(Settings(), "redis://nowhere", None).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    told = set(re.findall(r"^\| `((?:GET|POST|DELETE) [^`]+)` \|", PAGE, re.MULTILINE))
    assert told - {"GET /"} == routes


def test_every_limit_is_in_the_reference_with_its_default() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE.split("## Limits")[1], re.MULTILINE))
    assert {name: float(value) for name, value in told.items()} == Limits().model_dump()


def test_every_field_is_in_the_reference() -> None:
    order, gym = PAGE.split("## An order")[1].split("## ")[0], PAGE.split("## From KernelGYM")[1]
    assert [name for name in Order.model_fields if f"| `{name}` |" not in order] == []
    assert [name for name in GymTask.model_fields if f"`{name}`" not in gym] == ["workflow"]
