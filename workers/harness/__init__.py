"""Harness: what runs in a candidate's process, around its code and under its hands; all that it says is a claim."""
