"""The policy that a run began with, as a prior: each nat of divergence from it costs return.

Maximizing J - beta * KL(policy || prior) is PPO on r_t - beta * (log policy(a_t) - log prior(a_t)), as in control with
a KL cost (Todorov, 2007; Jaques et al., 2017). An entropy bonus keeps every choice probable, most of them bad; a prior
keeps the imitated choices probable until others are found to be better.
"""

from __future__ import annotations

import torch

from actors.policy.network import FactoredRecurrentActorCritic
from learner.ppo.batch import Batch
from learner.ppo.minibatch import whole_batch


class Prior:
    """A frozen policy, evaluated on whole episodes from its own initial state."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        self.network = network.eval().requires_grad_(False)

    @torch.no_grad()
    def charge(self, batch: Batch, coefficient: float) -> tuple[Batch, dict[str, torch.Tensor]]:
        """Subtract `coefficient` times the divergence in nats of each step from its reward. Returns the batch and
        metrics."""
        nats = self.nats(batch)
        steps = (~batch.forced).sum().clamp(min=1)
        metrics = {"prior_kl": nats.sum() / steps, "prior_coef": torch.tensor(coefficient)}
        return batch._replace(rewards=batch.rewards - coefficient * nats), metrics

    def nats(self, batch: Batch) -> torch.Tensor:
        """Return `[N]`: the log-probability of each action under the acting policy minus that under the prior; 0 if no
        other action was legal."""
        whole = batch.uncut(self.network.initial_state(len(batch.episode_lengths)))
        log_probs = self.network.evaluate_steps(whole_batch(whole).steps(whole)).log_probs
        counted = self.network.counted[batch.actions[:, 0]] & ~batch.forced[:, None]
        return (batch.log_probs - log_probs.to(batch.log_probs.dtype)).masked_fill(~counted, 0.0).sum(-1)
