"""Hosts that are network namespaces of this machine: each has an address and a name, and a cable that can be cut."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from drkernel_q.local.process import tether


class Host:
    """One host on the test's own network."""

    def __init__(self, net: str, number: int) -> None:
        self.name = f"host{number}"
        self.address = f"10.213.7.{number}"
        self._net = net
        self._space = f"{net}-{number}"
        self._port = f"p{number}"

    def plug_in(self) -> None:
        _ip("netns", "add", self._space)
        _ip("link", "add", "eth0", "netns", self._space, "type", "veth", "peer", self._port, "netns", self._net)
        _ip("-n", self._net, "link", "set", self._port, "master", "br0", "up")
        _ip("-n", self._space, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", self._space, "link", "set", device, "up")

    def cut(self) -> None:
        """Cut the cable: whatever is sent to it or by it is lost, and nobody is told."""
        _ip("-n", self._net, "link", "set", self._port, "down")

    def mend(self) -> None:
        _ip("-n", self._net, "link", "set", self._port, "up")

    def prefix(self) -> list[str]:
        """What a command needs in front of it to run on this host."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname {self.name} && exec "$@"', "sh"]
        return ["ip", "netns", "exec", self._space, *named]

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*self.prefix(), *command],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=tether(signal.SIGKILL),  # noqa: PLW1509 - one prctl, no locks
        )

    def remove(self) -> None:
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "delete", self._space)


@contextmanager
def network(hosts: int) -> Iterator[list[Host]]:
    """Make hosts on one switch, or skip the test where that is not allowed."""
    net = f"dq{os.getpid()}"
    found = [Host(net, number) for number in range(1, hosts + 1)]
    try:
        _ip("netns", "add", net)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespaces here (needs root and iproute2)")
    try:
        _ip("-n", net, "link", "add", "br0", "type", "bridge")
        _ip("-n", net, "link", "set", "br0", "up")
        for host in found:
            host.plug_in()
        yield found
    finally:
        for host in found:
            host.remove()
        _ip("netns", "delete", net)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


def spaces() -> set[str]:
    """Names of the network namespaces that this process made and that are still there."""
    folder = Path("/run/netns")
    return {path.name for path in folder.glob(f"dq{os.getpid()}*")} if folder.exists() else set()
