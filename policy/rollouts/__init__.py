"""Rollouts: a model writes, the queue judges, over several turns; everything is stored."""
