"""Isolation: processes and what keeps them apart: forks, confinement, messages, and how a process ended."""
