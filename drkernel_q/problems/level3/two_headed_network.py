"""A shared trunk with a policy head and a value head; the outputs come back as a nested dict."""

import torch
import torch.nn as nn

batch_size = 4096
in_features = 512
hidden = 1024
actions = 256
CPU_SIZES = {"batch_size": 8, "in_features": 32, "hidden": 48, "actions": 16}


class Model(nn.Module):
    def __init__(self, in_features, hidden, actions):
        super().__init__()
        self.trunk1 = nn.Linear(in_features, hidden)
        self.trunk2 = nn.Linear(hidden, hidden)
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)
        for layer in (self.trunk1, self.trunk2, self.policy, self.value):
            nn.init.normal_(layer.weight, std=2 / layer.in_features**0.5)
            nn.init.normal_(layer.bias, std=0.5)

    def forward(self, observation, allowed):
        x = torch.tanh(self.trunk1(observation))
        x = torch.tanh(self.trunk2(x))
        logits = self.policy(x).masked_fill(~allowed, -1e4)
        probability = torch.softmax(logits, dim=-1)
        entropy = torch.special.entr(probability).sum(dim=-1)
        return {"policy": {"probability": probability, "entropy": entropy}, "value": self.value(x).squeeze(-1)}


def get_inputs():
    allowed = torch.rand(batch_size, actions) < 0.7
    # Without an allowed action there is no policy.
    allowed[:, 0] = True
    return [torch.randn(batch_size, in_features), allowed]


def get_init_inputs():
    return [in_features, hidden, actions]
