"""The report: one page about a run that needs nothing but a browser."""

from drkernel_q.report.page import page

__all__ = ["page"]
