"""The policy that a run began with, as a prior: straying from it costs return, nat by nat.

Maximising J - beta * KL(policy || prior) is PPO on r_t - beta * (log policy(a_t) - log prior(a_t)), as in control with
a KL cost (Todorov, 2007; Jaques et al., 2017). An entropy bonus keeps every choice alive, most of them bad; this keeps
alive what was taught, and what the policy does where nothing was learnt is what it was taught.
"""

from __future__ import annotations

import torch

from actors.policy.network import FactoredRecurrentActorCritic
from learner.config import LearnerConfig
from learner.ppo.batching import Batch
from learner.ppo.chunks import load, uncut, whole


def prior_coefficient(config: LearnerConfig, update: int) -> float:
    share = min(1.0, update / config.prior_anneal_updates)
    return config.prior_start + share * (config.prior_end - config.prior_start)


class Prior:
    """Frozen; sees whole episodes from its own first state."""

    def __init__(self, network: FactoredRecurrentActorCritic, max_padding_waste: float) -> None:
        self.network, self._waste = network.eval().requires_grad_(False), max_padding_waste

    @torch.no_grad()
    def charge(self, batch: Batch, coefficient: float) -> tuple[Batch, dict[str, torch.Tensor]]:
        """`batch` with `coefficient` times each step's nats taken from its rewards, and metrics."""
        nats = self.nats(batch)
        steps = (batch.valid & ~batch.forced).sum().clamp(min=1)
        metrics = {"prior_kl": nats.sum() / steps, "prior_coef": torch.tensor(coefficient)}
        return batch._replace(rewards=batch.rewards - coefficient * nats), metrics

    def nats(self, batch: Batch) -> torch.Tensor:
        """`[E, T]`: log-probability of each action under the policy that acted, less that under the prior; 0 where
        nothing else was legal."""
        chunks = uncut(batch, self.network.initial_state(len(batch.valid)))
        out = self.network.evaluate_steps(load(chunks, whole(chunks, self._waste), self.network.advance))
        own = torch.zeros_like(batch.log_probs).flatten(0, 1)
        own[chunks.places] = out.log_probs.to(own.dtype)
        counted = self.network.counted[batch.actions[..., 0]] & (batch.valid & ~batch.forced)[..., None]
        return (batch.log_probs - own.view_as(batch.log_probs)).masked_fill(~counted, 0.0).sum(-1)
