"""Problem: a reference module in KernelBench's format, with `Model`, `get_inputs()` and `get_init_inputs()`."""

from drkernel_q.value import Value, content_hash


class Problem(Value):
    """A reference that kernels are judged against. Trusted code: it runs in the judge, never with a candidate."""

    name: str
    """Such as `1/23_Softmax` or `softmax`; for people, not part of the identity."""
    source: str
    """The whole Python source of the reference module."""

    @property
    def hash(self) -> str:
        """Content hash of the source."""
        return content_hash("problem", self.source)
