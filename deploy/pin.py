"""Write deploy/constraints.txt: what this environment has of drkq's dependencies, at the versions that it has.

`python deploy/pin.py` in an environment in which the tests pass. torch, triton and their CUDA libraries are left out: a
pinned torch is either a CUDA build or a CPU build (docs/decisions/0002-torch-bound.md), so the Dockerfile names it.
"""

import importlib.metadata
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "deploy" / "constraints.txt"
EXTRAS = ("worker", "policy", "postgres", "gateway", "flower")
LEFT_OUT = {"drkq", "torch", "triton", "setuptools"}
HEADER = "# Written by deploy/pin.py: versions that the tests passed with. torch and triton are in the Dockerfile.\n"


def wanted() -> list[Requirement]:
    """Read what drkq itself asks for, with the extras that the images have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in EXTRAS for line in extras.get(name, []))]
    return [each for each in map(Requirement, lines) if canonicalize_name(each.name) not in LEFT_OUT]


def closure(requirements: Iterable[Requirement]) -> dict[str, str]:
    """Find the version of each requirement here, and of all that those require."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(each, frozenset(each.extras)) for each in requirements if _applies(each, ())]
    while todo:
        requirement, extras = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, extras) in seen or name in LEFT_OUT or name.startswith(("nvidia-cu", "cuda-")):
            continue
        seen.add((name, extras))
        distribution = importlib.metadata.distribution(name)
        found[name] = distribution.version
        needed = map(Requirement, distribution.requires or [])
        todo += [(each, frozenset(each.extras)) for each in needed if _applies(each, extras)]
    return found


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


if __name__ == "__main__":
    lines = [f"{name}=={version}\n" for name, version in sorted(closure(wanted()).items())]
    TARGET.write_text(HEADER + "".join(lines))
