"""Masked categorical distributions with probability floors, and sampling from them."""

from __future__ import annotations

import torch
from torch import Tensor

from actors.config import MAX_FLOOR_MASS, PolicyConfig
from actors.types.spaces import Spaces

GYMNASIUM_FLOOR_MASS = 0.01


def masked_log_probs(logits: Tensor, mask: Tensor, floor: float = 0.0, mass: float = MAX_FLOOR_MASS) -> Tensor:
    """Return log-probabilities `[..., n]`; illegal choices are exactly -inf.

    With floor f and k legal choices, pi' = (1 - k f) pi + f for each of them, where f is at most mass / k, so that all
    floors together take at most `mass`. Rows without legal choices are NaN; callers must check for them.
    """
    log_probs = logits.float().masked_fill(~mask, -torch.inf).log_softmax(-1)
    if floor == 0.0:
        return log_probs
    legal = mask.sum(-1, keepdim=True)
    share = floor_share(legal, floor, mass)
    mixed = torch.where(mask, (1.0 - legal * share) * log_probs.exp() + share, 1.0)
    return mixed.log().masked_fill(~mask, -torch.inf)


def floor_mass(config: PolicyConfig, spaces: Spaces) -> float:
    """Return the maximum total probability of one head's floors; `auto` depends on whether there are slots."""
    if config.floor_mass != "auto":
        return config.floor_mass
    return MAX_FLOOR_MASS if spaces.slots else GYMNASIUM_FLOOR_MASS


def floor_share(legal: Tensor, floor: float, mass: float) -> Tensor:
    """Return the probability floor of each choice, given the number of `legal` choices."""
    return (mass / legal).clamp(max=floor)


def normalized_entropy(log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return `[...]` entropy divided by the log of the number of legal choices: in [0, 1], and 0 for one choice."""
    safe = log_probs.masked_fill(~mask, 0.0)
    entropy = -(safe.exp() * safe).masked_fill(~mask, 0.0).sum(-1)
    return entropy / mask.sum(-1).clamp(min=2).log()


def choose(log_probs: Tensor, noise: Tensor, deterministic: bool | Tensor) -> Tensor:
    """Return `[...]` indices: the most likely choices, or samples determined by uniform `noise [...]` in [0, 1).

    Inverse transform sampling takes the first choice whose cumulative probability exceeds the noise, so choices of
    probability 0 are never taken. `deterministic` may be a tensor, for traced programs.
    """
    if deterministic is True:
        return log_probs.argmax(-1)
    cumulative = log_probs.exp().double().cumsum(-1)
    threshold = noise.double().unsqueeze(-1) * cumulative[..., -1:]
    drawn = (cumulative <= threshold).sum(-1).clamp(max=log_probs.shape[-1] - 1)
    return torch.where(deterministic, log_probs.argmax(-1), drawn) if isinstance(deterministic, Tensor) else drawn


def masked_probs(logits: Tensor, mask: Tensor, floor: float, mass: float = MAX_FLOOR_MASS) -> Tensor:
    """Return the probabilities of `masked_log_probs` in fewer operations, for inference."""
    probs = torch.where(mask, logits, -torch.inf).softmax(-1)
    if floor == 0.0:
        return probs
    legal = mask.sum(-1, keepdim=True, dtype=torch.float32)
    return torch.where(mask, probs.lerp(legal.reciprocal(), (legal * floor).clamp(max=mass)), 0.0)


def choose_with_prob(probs: Tensor, noise: Tensor, deterministic: bool | Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of `choose` and their probabilities, each `[...]`, from `probs [..., n]` and float64 noise.

    For a row without legal choices the returned probability is 0 or NaN.
    """
    if deterministic is True:
        choice = probs.argmax(-1)
    else:
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        last = probs.shape[-1] - 1
        choice = (cumulative <= noise.unsqueeze(-1) * cumulative.narrow(-1, last, 1)).sum(-1).clamp(max=last)
        if isinstance(deterministic, Tensor):
            choice = torch.where(deterministic, probs.argmax(-1), choice)
    return choice, probs.gather(-1, choice.unsqueeze(-1)).squeeze(-1)


def where_relevant(relevant: Tensor, log_probs: Tensor) -> Tensor:
    """Return `log_probs` with 0 for irrelevant heads."""
    return torch.where(relevant, log_probs, 0.0)
