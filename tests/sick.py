"""A device that is not well: a canary whose complaints a test orders, put in place by Python's own search for modules.

The processes that import it are the real ones; nothing of ours knows about it.
"""

import os
from pathlib import Path

from tests.need import ROOT

_SITE = """
try:
    import workers
except ImportError:
    pass
else:
    workers.__path__.insert(0, {folder!r})
"""
_CANARY = """
import importlib.util, pathlib, socket

spec = importlib.util.spec_from_file_location("workers_canary", {real!r})
real = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)


def examine(device):
    found = real.examine(device)
    orders = pathlib.Path({orders!r})
    left = int(orders.read_text())
    if left:
        orders.write_text(str(left - 1))
        found["complaint"] = "7 of 8192 products are wrong"
    return found


def main(conn, device):
    real.Channel(socket.socket(fileno=conn)).send(examine(device))
"""


class SickDevice:
    """The canaries of every process that is started with `environment`."""

    def __init__(self, folder: Path) -> None:
        """All is well at first."""
        site = folder / "site"  # of closed folders a zygote shows its children nothing but those of Python code
        double = site / "double"
        double.mkdir(parents=True)
        self._orders = site / "complaints"
        self.complain(0)
        real = str(ROOT / "workers" / "canary.py")
        (double / "canary.py").write_text(_CANARY.format(real=real, orders=str(self._orders)))
        (site / "sitecustomize.py").write_text(_SITE.format(folder=str(double)))
        self.environment = {"PYTHONPATH": f"{site}{os.pathsep}{os.environ['PYTHONPATH']}"}

    def complain(self, times: int) -> None:
        """Let the next canaries find something wrong."""
        self._orders.write_text(str(times))

    @property
    def left(self) -> int:
        """Complaints that were ordered and not made yet."""
        return int(self._orders.read_text())
