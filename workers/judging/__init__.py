"""Judging: what plans an evaluation, asks a candidate, and decides; it alone has answers, clock and verdict."""
