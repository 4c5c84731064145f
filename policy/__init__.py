"""What learns. Rollouts, training and search will live here; this release holds none of them yet."""
