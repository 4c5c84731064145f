"""Problem: a reference module in KernelBench's format: `Model`, `get_inputs()`, `get_init_inputs()`."""

from collections.abc import Mapping

from drkernel_q.problem.constant import Constant, constant_spans, cpu_sizes, replace_constants, replace_cpu_sizes
from drkernel_q.problem.source import summary
from drkernel_q.value import Value, content_hash


class Problem(Value):
    """What kernels are judged against. Trusted code: it runs in the judge, never with a candidate."""

    name: str
    """Such as `1/23_Softmax` or `softmax`; for people, not part of the identity."""
    source: str
    """The whole Python source of the reference module."""

    @property
    def hash(self) -> str:
        """Content hash of the source."""
        return content_hash("problem", self.source)

    @property
    def summary(self) -> str:
        """First line of the docstring; empty if there is none."""
        return summary(self.source, self.name)

    @property
    def constants(self) -> dict[str, Constant]:
        """Module-level constants, such as sizes, that `resized` can replace."""
        return {span.name: span.value for span in constant_spans(self.source, self.name)}

    @property
    def cpu_sizes(self) -> dict[str, Constant]:
        """Values of constants for a device that is slow; empty if the module offers none."""
        return cpu_sizes(self.source, self.name)

    def resized(self, overrides: Mapping[str, Constant]) -> "Problem":
        """Build the same problem with other constants; the text changes at their values and nowhere else.

        A constant that `CPU_SIZES` names is replaced there too: what somebody asks for holds on every device.

        Raises:
            BadProblem: a name is no constant of the module.
        """
        source = replace_constants(self.source, overrides, self.name)
        return Problem(name=self.name, source=replace_cpu_sizes(source, overrides, self.name))

    def small(self) -> "Problem":
        """Build the same problem with its `CPU_SIZES`; without those it stays as it is."""
        return Problem(name=self.name, source=replace_constants(self.source, self.cpu_sizes, self.name))
