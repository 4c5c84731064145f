"""The store: trajectories, turns, kernels and evaluations in SQL."""

from drkernel_q.store.store import Store, StoreStatus

__all__ = ["Store", "StoreStatus"]
