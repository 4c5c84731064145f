"""Checkpoint: everything that a run needs to go on as if it had never stopped, written whole or not at all.

A checkpoint is a folder that is renamed into place when all of its files are on the disk. Its manifest names every
file with size and hash; a folder that does not answer to its manifest is no checkpoint and is passed over.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from drkernel_q.errors import BadSettings
from drkernel_q.value import HASH_TAG, Value
from policy.config import differences
from policy.training.weights import write_through

MANIFEST = "manifest.json"
#: Version of the layout; another one is not read.
FORMAT = 1
_CHUNK_BYTES = 2**22


class FileMark(Value):
    """What a file of a checkpoint must be like."""

    size_bytes: int
    hash: str


class Manifest(Value):
    """What a checkpoint says about itself."""

    format: int = FORMAT
    step: int
    """Training steps that are done."""
    cursor: int
    """Trained frontier: how many problems of the run's sequence have been learned from."""
    policy_version: int
    """Version of the weights inside, the one that samplers must load before anything is sampled."""
    config: dict[str, Any]
    """The resolved configuration of the run."""
    files: dict[str, FileMark]


class Checkpoint(NamedTuple):
    """A whole checkpoint."""

    folder: Path
    manifest: Manifest


def save(root: Path, manifest: Manifest, write: Callable[[Path], None], *, keep: int) -> Checkpoint:
    """Have `write` fill a folder and rename it into place; of older checkpoints the newest `keep - 1` stay."""
    target = root / f"step_{manifest.step:06d}"
    temporary = root / f".{target.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        files = {path.name: mark(path) for path in sorted(temporary.iterdir())}
        manifest = manifest.model_copy(update={"files": files})
        write_through(temporary / MANIFEST, manifest.model_dump_json(indent=2))
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        _sync_folder(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in _folders(root)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return Checkpoint(target, manifest)


def latest(root: Path) -> Checkpoint | None:
    """Find the newest checkpoint that is whole; None when there is none."""
    return next((found for folder in _folders(root) if (found := read(folder)) is not None), None)


def read(folder: Path) -> Checkpoint | None:
    """Read the manifest of a checkpoint; None when a file is missing, cut, changed, or of another format."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_text(encoding="utf-8"))
        whole = all(mark(folder / name) == wanted for name, wanted in manifest.files.items())
    except (OSError, ValidationError, UnicodeDecodeError):
        return None
    return Checkpoint(folder, manifest) if whole and manifest.format == FORMAT else None


def mark(path: Path) -> FileMark:
    """Measure and hash a file, and see to it that it is on the disk."""
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
        os.fsync(file.fileno())
    return FileMark(size_bytes=size, hash=f"{HASH_TAG}:{digest.hexdigest()}")


def refuse_differences(saved: Mapping[str, Any], now: Mapping[str, Any], *, free: Iterable[str] = ()) -> None:
    """Make sure that a run goes on with the configuration that it began with.

    A key of `free`, such as `steps` or `checkpoint`, may differ, with all below it.

    Raises:
        BadSettings: something else differs; the message names every key with both values.
    """
    different = [f"{key} was {_shown(was)} and is {_shown(is_)}" for key, was, is_ in differences(saved, now, free)]
    if different:
        raise BadSettings(
            f"The run began with another configuration: {'; '.join(different)}. "
            "Resume with the old one, or begin a run of another name."
        )


def _folders(root: Path) -> list[Path]:
    """Folders named as checkpoints, the newest first."""
    return sorted((path for path in root.glob("step_*") if path.is_dir()), reverse=True)


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk when the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
