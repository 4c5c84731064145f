"""What learns: rollouts over the queue, supervised fine-tuning, reinforcement learning, and search at test time."""
