"""Masked categorical heads: the one place where masks and probability floors meet logits."""

from __future__ import annotations

import torch
from torch import Tensor

from actors.config import MAX_FLOOR_MASS, PolicyConfig
from actors.types.spaces import Spaces

GYMNASIUM_FLOOR_MASS = 0.01


def masked_log_probs(logits: Tensor, mask: Tensor, floor: float = 0.0, mass: float = MAX_FLOOR_MASS) -> Tensor:
    """Log-probabilities `[..., n]` over legal choices; illegal ones are exactly -inf (probability 0).

    With floor f and k legal choices, pi' = (1 - k f) pi + f on each of them, where f is at most mass / k: all floors
    together take at most `mass`. A row without a legal choice is NaN: callers check first.
    """
    log_probs = logits.float().masked_fill(~mask, -torch.inf).log_softmax(-1)
    if floor == 0.0:
        return log_probs
    legal = mask.sum(-1, keepdim=True)
    share = floor_share(legal, floor, mass)
    mixed = torch.where(mask, (1.0 - legal * share) * log_probs.exp() + share, 1.0)
    return mixed.log().masked_fill(~mask, -torch.inf)


def floor_mass(config: PolicyConfig, spaces: Spaces) -> float:
    """The most that the floors of one head take together; `auto` tells seed hosts by their slots."""
    if config.floor_mass != "auto":
        return config.floor_mass
    return MAX_FLOOR_MASS if spaces.slots else GYMNASIUM_FLOOR_MASS


def floor_share(legal: Tensor, floor: float, mass: float) -> Tensor:
    """The least probability of each of `legal` choices."""
    return (mass / legal).clamp(max=floor)


def normalised_entropy(log_probs: Tensor, mask: Tensor) -> Tensor:
    """`[...]` entropy divided by the log of the number of legal choices: in [0, 1], 0 where there is one choice."""
    safe = log_probs.masked_fill(~mask, 0.0)
    entropy = -(safe.exp() * safe).masked_fill(~mask, 0.0).sum(-1)
    return entropy / mask.sum(-1).clamp(min=2).log()


def choose(log_probs: Tensor, noise: Tensor, deterministic: bool | Tensor) -> Tensor:
    """`[...]` indices: the most likely choice, or the one that uniform `noise [...]` in [0, 1) picks.

    Inverse transform: the first choice whose cumulative probability exceeds the noise, so a choice of probability 0
    is never taken and equal noise gives equal choices. `deterministic` may be a tensor, for traced programs.
    """
    if deterministic is True:
        return log_probs.argmax(-1)
    cumulative = log_probs.exp().double().cumsum(-1)
    threshold = noise.double().unsqueeze(-1) * cumulative[..., -1:]
    drawn = (cumulative <= threshold).sum(-1).clamp(max=log_probs.shape[-1] - 1)
    return torch.where(deterministic, log_probs.argmax(-1), drawn) if isinstance(deterministic, Tensor) else drawn


_NEVER, _NOTHING = torch.tensor(-torch.inf), torch.tensor(0.0)  # a number would be made a tensor at each call


def masked_probs(logits: Tensor, mask: Tensor, floor: float, mass: float = MAX_FLOOR_MASS) -> Tensor:
    """Probabilities as of `masked_log_probs`, for those who need no gradient: in fewer operations."""
    probs = torch.where(mask, logits, _NEVER).softmax(-1)
    if floor == 0.0:
        return probs
    legal = mask.sum(-1, keepdim=True, dtype=torch.float32)
    return torch.where(mask, probs.lerp(legal.reciprocal(), (legal * floor).clamp(max=mass)), _NOTHING)


def choose_of(probs: Tensor, noise: Tensor, deterministic: bool | Tensor) -> tuple[Tensor, Tensor]:
    """What `choose` chooses, and its probability, each `[...]`, from probabilities `[..., n]` and noise in float64;
    without a legal choice it is not above 0."""
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
    """0 elsewhere."""
    return torch.where(relevant, log_probs, _NOTHING)
