"""Steps as an environment has them: a flat mask or none at all, and an action that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actors.sessions.refusal import Code, Reason
from actors.sessions.session import Answer, PolicyError
from actors.types.actions import ActionMasks, ActionSpec

Mask = ArrayLike | ActionMasks | None
NO_MASK = (
    "the step has no mask, but this policy has learned where some choices are illegal: give the mask of every step, "
    "all true where everything is legal"
)


def as_masks(spec: ActionSpec, mask: Mask, needed: bool = False) -> ActionMasks:
    """Return the masks of one step. `mask` is `[A]`, all heads concatenated, where continuous heads have one entry each
    or none; None allows everything, unless a mask is `needed`. Raises `PolicyError`."""
    if isinstance(mask, ActionMasks):
        return mask
    if spec.conditioned:
        raise _refused("these spaces have slots: give the mask as tamiyo.ActionMasks")
    if mask is None and needed:
        raise PolicyError(Code.INVALID_ARGUMENT, NO_MASK, Reason.ILLEGAL_MASK)
    legal = np.ones(spec.flat_size, np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_).reshape(-1)
    if legal.size == spec.flat_size - spec.num_continuous:
        legal = np.append(legal, np.ones(spec.num_continuous, np.bool_))
    if legal.size != spec.flat_size:
        raise _refused(f"the mask has {legal.size} entries: give {spec.flat_size}, one for each choice of each head")
    return ActionMasks.of_flat(spec, legal)


def as_obs(size: int, obs: ArrayLike) -> NDArray[np.float32]:
    """Return an observation `[D]`. Raises `PolicyError` for another size."""
    flat = np.asarray(obs, dtype=np.float32).reshape(-1)
    if flat.size != size:
        raise _refused(f"the observation has {flat.size} features: give {size}")
    return flat


def env_action(spec: ActionSpec, answer: Answer) -> int | NDArray[Any]:
    """Return the action of an answer: an int, `[H]` with several heads, or with continuous heads float64: the choices
    of the other heads, if there are any, then one value per continuous head, within its bounds."""
    heads = spec.heads[: spec.num_categorical]
    if not answer.continuous.size:
        return int(answer.action[0]) if len(heads) == 1 else answer.action
    choices = answer.action[: len(heads)] if max(h.size for h in heads) > 1 else answer.action[:0]
    return np.concatenate([choices, answer.continuous])


def _refused(message: str) -> PolicyError:
    return PolicyError(Code.INVALID_ARGUMENT, message, Reason.WRONG_SHAPE)
