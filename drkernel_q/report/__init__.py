"""The report: one page about runs that needs nothing but a browser."""

from drkernel_q.report.page import compared, page

__all__ = ["compared", "page"]
