"""Continuous columns have one ratio, and their own entropy coefficient, against the formula step by step."""

from __future__ import annotations

import torch

from actors.policy.network import Evaluation
from learner.config import LearnerConfig
from learner.ppo.objective import Denominators, objective
from learner.ppo.targets import Targets


def test_the_ratio_is_of_the_sum_and_entropies_have_their_own_coefficients() -> None:
    torch.manual_seed(0)
    steps, heads, continuous = 40, 4, 3
    old, new, entropies = 0.3 * torch.randn(steps, heads), 0.3 * torch.randn(steps, heads), torch.rand(steps, heads)
    advantages, values, nothing = torch.randn(steps, heads), torch.randn(steps), torch.zeros(steps, 0)
    advantages[:, 1:] = advantages[:, 1:2]
    every = torch.ones(steps, heads, dtype=torch.bool)
    targets = Targets(advantages, values, values, old, old, every, every[:, 0])
    out = Evaluation(new, entropies, values, values, nothing, nothing)
    config = LearnerConfig(continuous_entropy_coef=0.3, clip=0.2)
    loss = objective(out, targets, config, 0.1, Denominators(torch.tensor(float(steps)), steps), continuous).total

    expected = 0.0
    for n in range(steps):
        moved = (new - old)[n]
        for log_ratio, a in ((moved[0], advantages[n, 0]), (moved[1:].sum(), advantages[n, 1])):
            ratio = float(log_ratio.exp())
            expected -= min(ratio * float(a), min(max(ratio, 0.8), 1.2) * float(a)) / steps
        expected -= (0.1 * float(entropies[n, 0]) + 0.3 * float(entropies[n, 1:].sum())) / steps
    assert abs(float(loss) - expected) < 1e-5
