"""Training: steps of rollout, judging, learning and publishing, and all that makes a run of them."""
