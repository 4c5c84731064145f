"""The embedded stack: broker, workers and persister of one machine, started by the first command and ended by the last.

A stack is a process of its own (`drkernel_q.local.stack`). Commands hold a connection to it while they use it, so it
knows when nobody does, also when a command was killed; and its children die with it.
"""

from drkernel_q.local.client import StackStatus, join, keep, status, stop
from drkernel_q.local.control import Place

__all__ = ["Place", "StackStatus", "join", "keep", "status", "stop"]
