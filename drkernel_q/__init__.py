"""drkq: the names, values, queue client and store of the kernel judge (no GPU stack is imported here)."""

__version__ = "0.1.0"
