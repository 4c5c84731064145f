"""Quarantine: which devices of this machine are out of service, since when and why; one small file a device.

A worker writes the file when its device fails its check again and again, and a person removes it
(`drkq worker --clear-quarantine`). As long as it is there, nothing is judged on the device.
"""

import json
from pathlib import Path

from pydantic import ValidationError

from drkernel_q.value import Value


class Quarantine(Value):
    """Why a device is out of service."""

    identity: str
    """What the device is known by, whatever it is called: the UUID of a GPU."""
    device: str
    """`cuda:0` or `cpu`, as the worker called it."""
    device_name: str
    """Such as `NVIDIA H200`."""
    host: str
    reason: str
    """A sentence."""
    since: str
    """UTC, ISO 8601."""
    evidence: tuple[str, ...] = ()
    """What was seen, in order."""

    @property
    def remedy(self) -> str:
        """What a person does about it."""
        return f"When the device is well again: `drkq worker --device {self.device} --clear-quarantine` on {self.host}."


def put(state_dir: Path, quarantine: Quarantine) -> Path:
    """Write the file, whole or not at all, and return its path.

    Raises:
        OSError: it cannot be written.
    """
    path = _path(state_dir, quarantine.identity)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(quarantine.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")
    return fresh.replace(path)


def find(state_dir: Path, identity: str) -> Quarantine | None:
    """Read the file of a device; one that cannot be read keeps the device out of service too."""
    path = _path(state_dir, identity)
    return _read(path) if path.exists() else None


def find_all(state_dir: Path) -> list[Quarantine]:
    """List the devices that are out of service, by identity."""
    return [_read(path) for path in sorted(_path(state_dir, "").parent.glob("*.json"))]


def clear(state_dir: Path, identity: str) -> Quarantine | None:
    """Put a device back into service; return why it was out of it, or None if it was not."""
    found = find(state_dir, identity)
    _path(state_dir, identity).unlink(missing_ok=True)
    return found


def _path(state_dir: Path, identity: str) -> Path:
    return state_dir / "quarantine" / f"{identity}.json"


def _read(path: Path) -> Quarantine:
    try:
        return Quarantine.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = f"{path} cannot be read ({type(error).__name__})."
        return Quarantine(
            identity=path.stem, device="cuda:N", device_name="", host="this host", reason=reason, since="?"
        )
