"""Pretraining by imitation: supervised passes over demonstrations (behavioural cloning; Pomerleau, 1989).

The loss is -log pi(demonstrated action), over the heads that are relevant to the op, plus the squared error of the
value against the demonstration's return. Demonstrations are episodes as actors make them, so that masks and hidden
states are those of PPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.precision import tf32
from actors.types.episode import Episode
from learner.ppo.batch import Batch, make_batch
from learner.ppo.extremes import clip_rewards
from learner.ppo.gae import gae
from learner.ppo.minibatch import Minibatch, minibatch, whole_batch
from learner.ppo.objective import value_loss
from learner.ppo.optimizer import descend, make_optimizer

HELD_OUT = 0.1  # share of the demonstrations that are used for evaluation only
GRADIENT_CLIP, VALUE_COEF = 0.5, 0.5


class ImitationResult(NamedTuple):
    """Negative log-likelihood of the held-out demonstrations, in nats per unforced step, before and after."""

    before: float
    after: float
    agreement: float  # share of unforced steps whose op has a probability of at least a half
    skipped: int = 0  # optimizer steps that were skipped because the gradient was not finite
    clipped: int = 0  # extreme rewards and observations, see `learner.ppo.extremes` and `ObservationNormalizer`


class _Demonstrations(NamedTuple):
    """A batch of episodes and its targets."""

    batch: Batch  # whole episodes
    clipped: Tensor  # [] rewards and bootstrap values
    returns: Tensor  # [N]
    counted: Tensor  # [N, H]
    unforced: Tensor  # [N]


@tf32(False)
def imitate(
    network: FactoredRecurrentActorCritic,
    episodes: Sequence[Episode],
    passes: int,
    minibatch_episodes: int = 16,
    lr: float = 1e-3,
    gamma: float = 1.0,
    seed: int = 0,
) -> ImitationResult:
    """Train `network` in place on all but the last tenth of `episodes`, which is held out. Steps with non-finite
    gradients are skipped. Raises `ValueError` for too few episodes, and `UserError` if every step was skipped."""
    held = max(1, round(HELD_OUT * len(episodes)))
    if len(episodes) < 2 * held:
        raise ValueError(f"{len(episodes)} demonstrations are too few: give at least two")
    network.train()
    shown, held_out = (_demonstrations(network, part, gamma) for part in (episodes[:-held], episodes[-held:]))
    before, _ = _measure(network, held_out)
    clipped = shown.clipped + network.update_normalizer(shown.batch.obs[: shown.batch.size])
    network.value_normalizer.update(shown.returns, network.value_output)
    optimizer = make_optimizer(network, lr)
    skipped = torch.zeros((), device=network.norm.weight.device)
    chunks, rng = len(shown.batch.chunk_lengths), np.random.Generator(np.random.Philox(key=(seed, 0)))
    steps = 0
    for done in range(passes):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1.0 - done / passes)
        for part in np.array_split(rng.permutation(chunks), max(1, chunks // minibatch_episodes)):
            loss = _loss(network, shown, minibatch(shown.batch, np.sort(part)))
            broken, _ = descend(optimizer, loss, GRADIENT_CLIP)
            skipped += broken
            steps += 1
    if steps and int(skipped) == steps:
        raise UserError(
            "imitation: the gradient of every step was NaN or infinite, so nothing was learned; look for rewards "
            "or observations of extreme size"
        )
    return ImitationResult(before, *_measure(network, held_out), int(skipped), int(clipped))


def _demonstrations(
    network: FactoredRecurrentActorCritic, episodes: Sequence[Episode], gamma: float
) -> _Demonstrations:
    batch = make_batch(episodes, network.spaces).to(network.norm.weight.device)
    batch, clipped = clip_rewards(batch.uncut(network.initial_state(len(episodes))), network.value_normalizer)
    rewards = batch.to_rows(batch.rewards)
    no_values = torch.zeros_like(rewards)
    returns = gae(rewards, no_values, batch.valid, batch.terminated, batch.bootstrap_value, gamma, 1.0).returns
    counted = network.counted[batch.actions[:, 0]] & ~batch.forced[:, None]
    number = torch.stack(list(clipped.values())).sum()
    return _Demonstrations(batch, number, batch.from_rows(returns), counted, ~batch.forced)


def _loss(network: FactoredRecurrentActorCritic, shown: _Demonstrations, part: Minibatch) -> Tensor:
    out = network.evaluate_steps(part.steps(shown.batch))
    counted, unforced, returns = map(part.select, (shown.counted, shown.unforced, shown.returns))
    likelihood = out.log_probs.masked_fill(~counted, 0.0).sum() / unforced.sum().clamp(min=1)
    target = network.value_normalizer.normalize(returns)
    return VALUE_COEF * value_loss(out.values, target, target, None, len(returns)) - likelihood


@torch.no_grad()
def _measure(network: FactoredRecurrentActorCritic, shown: _Demonstrations) -> tuple[float, float]:
    """Return the loss in nats per step, and the share of steps whose demonstrated op has a probability of at least one
    half and is thus the most likely one."""
    log_probs = network.evaluate_steps(whole_batch(shown.batch).steps(shown.batch)).log_probs
    steps = shown.unforced.sum().clamp(min=1)
    likely = (log_probs[:, 0] >= np.log(0.5)) & shown.unforced
    return -float(log_probs.masked_fill(~shown.counted, 0.0).sum() / steps), float(likely.sum() / steps)
