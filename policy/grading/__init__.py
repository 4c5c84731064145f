"""Grading: what models, kernels and training runs are worth, with intervals, side by side."""
