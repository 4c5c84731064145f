"""Environment: where, and with what, something was measured."""

from drkernel_q.value import Value


class Conditions(Value):
    """What decides the facts of an evaluation beside what is asked for: under equal ones it need not be made twice."""

    device_kind: str
    versions: dict[str, str]
    """Of drkq, its rules, torch, triton, the driver and Python."""


class Environment(Value):
    """Where and with what a measurement was made."""

    device: str
    """`cuda:0`, `cpu`, or `cpu:1` of a further worker on the same CPU."""
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

    @property
    def device_type(self) -> str:
        """`cuda` or `cpu`."""
        return self.device.partition(":")[0]

    def conditions(self, rules_version: str | None) -> Conditions:
        """Return what decides facts here, under these rules."""
        versions = {name: getattr(self, name) or "" for name in ("drkq", "torch", "triton", "driver", "python")}
        return Conditions(device_kind=self.device_kind, versions=versions | {"rules": rules_version or ""})
