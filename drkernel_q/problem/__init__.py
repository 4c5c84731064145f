"""Problem: what kernels are judged against, and where problems come from. Read as text; never run here."""

from drkernel_q.problem.catalogue import (
    added_files,
    added_folder,
    builtin_files,
    find_problem,
    kernelbench_files,
    load_kernelbench,
)
from drkernel_q.problem.constant import Constant, parse_override
from drkernel_q.problem.file import load_folder, load_problem
from drkernel_q.problem.reference import Problem
from drkernel_q.problem.row import load_row, problem_from_row
from drkernel_q.problem.suite import find_problems, load_suite

__all__ = [
    "Constant",
    "Problem",
    "added_files",
    "added_folder",
    "builtin_files",
    "find_problem",
    "find_problems",
    "kernelbench_files",
    "load_folder",
    "load_kernelbench",
    "load_problem",
    "load_row",
    "load_suite",
    "parse_override",
    "problem_from_row",
]
