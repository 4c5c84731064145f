"""Compose: the services of compose.yaml, as `drkq up --compose` starts them by docker."""

import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from drkernel_q.errors import BadSettings, Unavailable

FILE = "compose.yaml"
COMMAND = ["docker", "compose"]
#: Folder of the passwords, which only its owner enters. The files are readable: in a container other users read them.
SECRETS = "secrets"
PASSWORDS = ("redis-password", "worker-password", "postgres-password")
#: The first client of the gateway: who may do what is in this file, a line a client.
TOKENS = "gateway-tokens"


def find(folder: Path) -> Path:
    """Find the folder with compose.yaml: this one.

    Raises:
        BadSettings: there is none.
    """
    if not (folder / FILE).is_file():
        raise BadSettings(f"There is no {FILE} in {folder}; go to a checkout of drkq.")
    return folder


def profile(device: str) -> str:
    """Name the profile of the worker on a device: `cpu`, or `gpu-N` for `cuda:N`."""
    return device.replace("cuda:", "gpu-")


def make_secrets(folder: Path) -> list[str]:
    """Make the passwords and the token that are not there yet; return the names of their files."""
    place = folder / SECRETS
    place.mkdir(mode=0o700, exist_ok=True)
    missing = [name for name in (*PASSWORDS, TOKENS) if not (place / name).exists()]
    for name in missing:
        secret = secrets.token_hex(24)
        handle = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        with os.fdopen(handle, "w") as file:
            file.write(f"first {secret} read,submit\n" if name == TOKENS else f"{secret}\n")
        (place / name).chmod(0o444)  # whatever the umask says
    return missing


def up(profiles: Sequence[str]) -> list[str]:
    """Write the command that starts the services of some profiles."""
    chosen = [word for each in dict.fromkeys(profiles) for word in ("--profile", each)]
    return [*COMMAND, *chosen, "up", "--build", "--detach", "--wait"]


def run(command: Sequence[str]) -> None:
    """Run a command of docker, which speaks for itself.

    Raises:
        Unavailable: docker is not installed, or fails.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise Unavailable(
            "docker is not installed; install Docker with its compose plugin, or run `drkq up` without --compose."
        ) from error
    if done.returncode:
        raise Unavailable(f"docker ended with code {done.returncode}; see above.")
