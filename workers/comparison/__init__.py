"""Comparison: the reference, what is right by it, and how far outputs lie from that."""
