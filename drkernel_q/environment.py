"""Environment: where, and with what, something was measured."""

from drkernel_q.value import Value


class Environment(Value):
    """Where and with what a measurement was made."""

    device: str
    """`cuda:0` or `cpu`."""
    device_name: str
    """Such as `NVIDIA H200`, or `cpu (interpreted)`."""
    device_kind: str
    """What results may be compared within: `sm_90/NVIDIA H200` or `cpu`."""
    host: str
    python: str
    torch: str
    triton: str
    driver: str | None = None
    drkq: str
    isolation: tuple[str, ...] = ()
    """Sandbox measures that were active for the candidate, such as `uid`, `landlock`, `seccomp`."""
