"""A curriculum that needs no download: generated problems, and solutions of graded quality for each."""

from drkernel_q.curriculum.exercise import Exercise, Quality, Solution, split
from drkernel_q.curriculum.generate import generate

__all__ = ["Exercise", "Quality", "Solution", "generate", "split"]
