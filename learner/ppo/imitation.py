"""Imitation: supervised passes over demonstrations, before there is anything to reinforce.

The heads learn what was done and the critic what it brought: -log pi(demonstrated action), over the heads that
mattered, beside the squared error of the value against the demonstration's own return (behavioural cloning; Pomerleau,
1989). Demonstrations are episodes as actors make them, so that masks and hidden states are what they will be in PPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.types.episode import Episode
from learner.ppo import losses
from learner.ppo.batching import make_batch
from learner.ppo.chunks import Chunks, Part, load, minibatch, pick, uncut, whole
from learner.ppo.gae import gae
from learner.ppo.optimizer import clip_gradients, make_optimizer

HELD_OUT = 0.1  # of the demonstrations: looked at, never learnt from
PADDING_WASTE = 1.3
GRADIENT_CLIP, VALUE_COEF, WEIGHT_DECAY = 0.5, 0.5, 1e-4


class ImitationResult(NamedTuple):
    """How well the demonstrations that were held out are known, in nats per unforced step; `before` at the start."""

    before: float
    after: float
    agreement: float  # share of unforced steps whose op has a probability of a half at least


class _Lesson(NamedTuple):
    """N flat valid steps."""

    chunks: Chunks
    returns: Tensor  # [N]
    counted: Tensor  # [N, H]
    unforced: Tensor  # [N]


def imitate(
    network: FactoredRecurrentActorCritic,
    episodes: Sequence[Episode],
    passes: int,
    minibatch_episodes: int = 16,
    lr: float = 1e-3,
    gamma: float = 1.0,
    seed: int = 0,
) -> ImitationResult:
    """Change `network` in place. The last tenth of `episodes` is held out. Raises `ValueError` for too few of them."""
    held = max(1, round(HELD_OUT * len(episodes)))
    if len(episodes) < 2 * held:
        raise ValueError(f"{len(episodes)} demonstrations are too few: give two at least")
    network.train()
    lesson, test = (_lesson(network, part, gamma) for part in (episodes[:-held], episodes[-held:]))
    before, _ = _known(network, test)
    network.update_normaliser(lesson.chunks.obs)
    network.value_normaliser.update(lesson.returns, network.value_output)
    optimizer = make_optimizer(network, lr, WEIGHT_DECAY)
    rows, rng = len(lesson.chunks.lengths), np.random.Generator(np.random.Philox(key=(seed, 0)))
    for done in range(passes):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1.0 - done / passes)
        for part in np.array_split(rng.permutation(rows), max(1, rows // minibatch_episodes)):
            loss = _loss(network, lesson, minibatch(lesson.chunks, np.sort(part), PADDING_WASTE))
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            clip_gradients(optimizer, GRADIENT_CLIP)
            optimizer.step()
    return ImitationResult(before, *_known(network, test))


def _lesson(network: FactoredRecurrentActorCritic, episodes: Sequence[Episode], gamma: float) -> _Lesson:
    batch = make_batch(episodes, network.spaces).to(network.norm.weight.device)
    chunks = uncut(batch, network.initial_state(len(episodes)))

    def flat(t: Tensor) -> Tensor:
        return t.flatten(0, 1).index_select(0, chunks.places)

    nothing = torch.zeros_like(batch.rewards)
    returns = gae(batch.rewards, nothing, batch.valid, batch.terminated, batch.bootstrap_value, gamma, 1.0).returns
    unforced = ~flat(batch.forced)
    return _Lesson(chunks, flat(returns), network.counted[chunks.actions[:, 0]] & unforced[:, None], unforced)


def _evaluate(network: FactoredRecurrentActorCritic, lesson: _Lesson, part: Part) -> Evaluation:
    return network.evaluate_steps(load(lesson.chunks, part, network.advance))


def _loss(network: FactoredRecurrentActorCritic, lesson: _Lesson, part: Part) -> Tensor:
    out = _evaluate(network, lesson, part)
    counted, unforced, returns = (pick(t, part.chunk.source) for t in (lesson.counted, lesson.unforced, lesson.returns))
    likelihood = out.log_probs.masked_fill(~counted, 0.0).sum() / unforced.sum().clamp(min=1)
    target = network.value_normaliser.normalise(returns)
    return VALUE_COEF * losses.value_loss(out.values, target, target, None, len(returns)) - likelihood


@torch.no_grad()
def _known(network: FactoredRecurrentActorCritic, lesson: _Lesson) -> tuple[float, float]:
    """Nats a step, and the share of steps whose op has a probability of a half at least: the likeliest, then."""
    log_probs = _evaluate(network, lesson, whole(lesson.chunks, PADDING_WASTE)).log_probs
    steps = lesson.unforced.sum().clamp(min=1)
    likely = (log_probs[:, 0] >= np.log(0.5)) & lesson.unforced
    return -float(log_probs.masked_fill(~lesson.counted, 0.0).sum() / steps), float(likely.sum() / steps)
