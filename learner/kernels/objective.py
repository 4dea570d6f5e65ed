"""The loss of `learner.ppo.objective` and its gradient, in one pass over the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.jit.decorators import Kernel, inner
from actors.policy.kernels.functions import exponential
from learner.kernels.cache import cache_dir

Array = NDArray[Any]
_HALF, _ONE = np.float32(0.5), np.float32(1.0)


def _loss(
    log_probs: Array,  # [N, H]
    entropies: Array,
    values: Array,  # [N]
    reference: Array,  # [N, H] log-probs of the policy that ratios refer to
    proximal: Array,  # [N, H] those of the proximal policy
    advantages: Array,  # [N, H], or [N, 1] with one ratio
    counted: Array,  # bool [N, H]
    unforced: Array,  # bool [N]
    returns: Array,  # [N]
    proximal_values: Array,
    share: Array,  # [H] denominators of the policy's terms
    numbers: Array,  # clip, clip of values (infinite without one), coefficients of values and entropy, denominator
    joint: bool,  # whether all heads have one ratio
    d_log_probs: Array,  # from here on output: the gradient of the total
    d_entropies: Array,
    d_values: Array,
    results: Array,  # [4]: total, policy's and value's term, KL divergence from the proximal policy
) -> None:
    """Compute losses and gradients."""
    heads, value_denominator = log_probs.shape[1], np.float32(numbers[4])
    clip, value_coef, entropy_coef = np.float32(numbers[0]), np.float32(numbers[2]), np.float32(numbers[3])
    policy, value, bonus, kl, count = np.float64(0.0), np.float64(0.0), np.float64(0.0), np.float64(0.0), 0
    for n in range(values.size):
        moved = np.float32(0.0)
        if joint:
            for head in range(heads):
                moved += log_probs[n, head] - reference[n, head]
        whole, d_whole = np.float32(0.0), np.float32(0.0)
        if joint and unforced[n]:
            surrogate, d_whole = _surrogate(moved, advantages[n, 0], clip)
            policy -= surrogate / share[0]
            d_whole /= -share[0]
        for head in range(heads):
            whole += log_probs[n, head] - proximal[n, head]
            d_log_probs[n, head], d_entropies[n, head] = d_whole, np.float32(0.0)
            if counted[n, head]:
                if not joint:
                    own = log_probs[n, head] - reference[n, head]
                    surrogate, slope = _surrogate(own, advantages[n, head], clip)
                    policy -= surrogate / share[head]
                    d_log_probs[n, head] = -slope / share[head]
                bonus += entropies[n, head] / share[head]
                d_entropies[n, head] = -entropy_coef / share[head]
        if unforced[n]:
            kl += _excess(whole)
            count += 1
        error, slope = _value_error(values[n], proximal_values[n], returns[n], np.float32(numbers[1]))
        value += error
        d_values[n] = value_coef * slope / value_denominator
    value *= 0.5 / value_denominator
    results[0] = policy + value_coef * value - entropy_coef * bonus
    results[1], results[2], results[3] = policy, value, kl / max(1, count)


@inner
def _excess(x: Any) -> Any:
    """Return e^x - 1 - x; near 0 by its Taylor series, where the difference would have no correct digit."""
    if abs(x) > np.float32(0.25):
        return exponential(x) - _ONE - x
    total = np.float32(0.0)
    for k in range(7, 1, -1):
        total = (total + _ONE) * x / np.float32(k)
    return total * x


@inner
def _surrogate(moved: Any, advantage: Any, clip: Any) -> tuple[Any, Any]:
    """Return the clipped surrogate of a log-ratio, and its derivative."""
    ratio = exponential(moved)
    clipped = min(max(ratio, _ONE - clip), _ONE + clip)
    free, bound = ratio * advantage, clipped * advantage
    if not free > bound or clipped == ratio:  # NaN stays NaN
        return free, free
    return bound, np.float32(0.0)


@inner
def _value_error(value: Any, proximal: Any, target: Any, clip: Any) -> tuple[Any, Any]:
    """Return the larger of the squared errors without and with clipping, and half of its derivative."""
    error, moved = value - target, value - proximal
    near = proximal + min(max(moved, -clip), clip) - target
    if not near * near > error * error or abs(moved) <= clip:  # NaN stays NaN
        return error * error, error
    return near * near, np.float32(0.0)


loss = Kernel(_loss, cache_dir)
