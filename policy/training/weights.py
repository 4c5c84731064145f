"""Weights: how a new policy version reaches whoever samples.

The transport between processes is a folder that they share. A version is written into a temporary folder and renamed
when it is whole, with READY written last; every reader acknowledges what it has loaded, and nothing is removed that a
reader may still be loading. It costs about 1 % of a step, and no part of it can hang.
"""

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from drkernel_q.errors import BadSettings, NoSampler

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

READY = "READY"
_LOADED = "LOADED."
_POLL_S = 0.05


class Published(NamedTuple):
    """One version of the weights, whole."""

    version: int
    """Training step that made them; 0 is what the run began with."""
    folder: Path


class WeightFolder:
    """Versions of the weights in a folder that the trainer writes and samplers read.

    ```
    ROOT/step_000012/model.safetensors, config.json, ...
                     READY              written last
                     LOADED.NAME        one for each reader that has it
    ```
    """

    def __init__(self, root: Path, *, keep: int = 2) -> None:
        """Use a folder; at least the newest `keep` versions stay.

        Raises:
            BadSettings: `keep` is less than 2: a reader may be loading the newest but one.
        """
        if keep < 2:  # noqa: PLR2004 - the newest, and the one before that somebody may be loading
            raise BadSettings("At least 2 versions of the weights must be kept.")
        self.root = root
        self.keep = keep

    def publish(self, version: int, write: Callable[[Path], None]) -> Published:
        """Have `write` fill a folder, and show it to readers once it is whole; what was there already stays."""
        target = self._folder(version)
        if (target / READY).exists():
            return Published(version, target)
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self.root / f".{target.name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            write(temporary)
            sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
            write_through(temporary / READY, json.dumps({"version": version, "bytes": sizes}))
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return Published(version, target)

    def versions(self) -> list[Published]:
        """List what is whole, oldest first."""
        found = (path for path in self.root.glob("step_*") if (path / READY).exists())
        return sorted(Published(int(path.name.removeprefix("step_")), path) for path in found)

    def latest(self) -> Published | None:
        """Return the newest whole version; None before the first."""
        return next(reversed(self.versions()), None)

    def acknowledge(self, version: int, reader: str) -> None:
        """Say as a reader that a version is loaded."""
        (self._folder(version) / f"{_LOADED}{quote(reader, safe='')}").touch()

    def readers(self, version: int) -> frozenset[str]:
        """Name the readers that have loaded a version."""
        found = self._folder(version).glob(f"{_LOADED}*")
        return frozenset(unquote(path.name.removeprefix(_LOADED)) for path in found)

    async def acknowledged(self, version: int, readers: Iterable[str], timeout_s: float) -> None:
        """Wait until every reader has loaded a version.

        Raises:
            NoSampler: some did not within `timeout_s`; the message names them.
        """
        deadline = time.monotonic() + timeout_s
        while missing := sorted(set(readers) - self.readers(version)):
            if time.monotonic() > deadline:
                raise NoSampler(f"{', '.join(missing)} did not load version {version} within {timeout_s:g} s.")
            await asyncio.sleep(_POLL_S)

    def clean(self, readers: Collection[str] = ()) -> list[int]:
        """Remove versions that nobody may be loading; return which.

        A version goes when `keep` newer ones are there and every reader, those named included, has acknowledged a
        later one.
        """
        versions = self.versions()
        loaded = {published.version: self.readers(published.version) for published in versions}
        everybody = set(readers).union(*loaded.values())
        behind = min((_newest(loaded, reader) for reader in everybody), default=None)
        removed = []
        for published in versions[: -self.keep]:
            if behind is None or published.version < behind:
                shutil.rmtree(published.folder)
                removed.append(published.version)
        return removed

    def _folder(self, version: int) -> Path:
        return self.root / f"step_{version:06d}"


def _newest(loaded: dict[int, frozenset[str]], reader: str) -> int:
    """The newest version that a reader has loaded; -1 before its first."""
    return max((version for version, readers in loaded.items() if reader in readers), default=-1)


def write_through(path: Path, text: str) -> None:
    """Write a small file so that it outlives a power cut."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def merged_state(model: "Module") -> "dict[str, Tensor]":
    """Gather the weights under the names of the plain model, on the CPU: shards joined, LoRA added in.

    The model itself stays as it is: merging in place and taking it back would change its last bits. Every rank must
    call this, since shards are gathered by all.
    """
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    state = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        tensor = whole(parameter.detach())
        owner = name.removesuffix(".base_layer.weight")
        if owner != name and owner in adapted:
            for adapter in _active(adapted[owner]):
                tensor = tensor + _delta(adapted[owner], adapter).to(tensor)
        plain = name.replace(".base_layer.", ".").removeprefix("base_model.model.")
        state[plain] = tensor.to("cpu", copy=True).contiguous()
    return state


def untied(state: "Mapping[str, Tensor]", ties: Mapping[str, str]) -> "dict[str, Tensor]":
    """Give weights that are others too (`ties`: name and the other's name) a tensor of their own."""
    return {name: state[other].clone() for name, other in ties.items() if other in state} | dict(state)


def _active(layer: "Module") -> list[str]:
    return list(layer.active_adapters)  # type: ignore[arg-type]


def _delta(layer: "Module", adapter: str) -> "Tensor":
    delta: Tensor = layer.get_delta_weight(adapter)  # type: ignore[operator]
    return whole(delta)


def whole(tensor: "Tensor") -> "Tensor":
    """Return a tensor that may be sharded (a DTensor of FSDP2), joined; every rank must call this for the same one."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()
