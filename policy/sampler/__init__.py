"""Samplers: one small protocol, and the engines behind it."""
