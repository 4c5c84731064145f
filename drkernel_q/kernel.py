"""Kernel: one candidate source, identified by its content."""

from pathlib import Path

from drkernel_q.errors import BadKernelFile
from drkernel_q.value import Value, content_hash

#: Largest file that is read at all; anything the judge accepts is far smaller (`workers.judge.MAX_SOURCE_BYTES`).
MAX_FILE_BYTES = 64 * 2**20


class Kernel(Value):
    """A candidate: Python source that defines `ModelNew`. It may be wrong, empty or hostile; that is data."""

    source: str
    """The whole source text."""

    name: str = "kernel"
    """A label for people, such as the file's name; not part of the identity."""

    @property
    def hash(self) -> str:
        """Content hash of the source."""
        return content_hash("kernel", self.source)


def read_kernel(path: Path) -> Kernel:
    """Read a kernel file.

    Raises:
        BadKernelFile: the file is missing, not UTF-8 text, or larger than `MAX_FILE_BYTES`.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadKernelFile(f"{path} has {size} bytes; the largest kernel file read is {MAX_FILE_BYTES}.")
        return Kernel(source=path.read_text(encoding="utf-8"), name=path.name)
    except UnicodeDecodeError as error:
        raise BadKernelFile(f"{path} is not UTF-8 text (byte {error.start}).") from error
    except OSError as error:
        raise BadKernelFile(f"{path} cannot be read: {error.strerror}.") from error
