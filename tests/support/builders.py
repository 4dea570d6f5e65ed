"""Build random valid episodes and weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.types.episode import BurnIn, EndReason, Episode, RecurrentState
from actors.types.weights import WeightSet


def make_episode(
    rng_seed: int = 0,
    *,
    steps: int = 25,
    features: int = 12,
    slots: int = 3,
    head_sizes: tuple[int, ...] = (6, 3, 6, 3, 3, 4),
    num_layers: int = 1,
    hidden: int = 8,
    cells: int = 0,
    state_stride: int = 8,
    burn_in: int = 0,
    actor: str = "actor0",
    incarnation: int = 0,
    sequence: int = 0,
    generation: int = 1,
    version: int = 0,
    **changes: Any,
) -> Episode:
    """A valid episode drawn from `rng_seed`: chosen actions are legal in its masks. `changes` replace any field."""
    rng = np.random.default_rng(rng_seed)

    def floats(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32)

    def state(count: int) -> RecurrentState:
        lstm, memory = (num_layers, count, hidden), (cells, count)
        return RecurrentState(
            floats(*lstm), floats(*lstm), floats(*memory, 5 if cells else 0), floats(*memory, int(cells > 0))
        )

    actions = rng.integers(0, head_sizes, size=(steps, len(head_sizes)))
    masks = rng.random((steps, sum(head_sizes))) < 0.5
    offsets = np.cumsum((0, *head_sizes[:-1]))
    np.put_along_axis(masks, actions + offsets, True, axis=1)
    terminated = bool(rng.random() < 0.5)
    episode = Episode(
        episode_id=f"run/{actor}/{incarnation}/{sequence}",
        env_id="tamiyo/SeedTraining-v0",
        task_id="digits",
        seed=int(rng.integers(0, 2**63)),
        spaces_hash="spaces",
        generation=generation,
        policy_version=np.full(steps, version, dtype=np.int64),
        obs=floats(steps, features),
        blueprint_indices=rng.integers(-1, 6, size=(steps, slots)),
        actions=actions,
        log_probs=-np.abs(floats(steps, len(head_sizes))),
        masks=masks,
        values=floats(steps),
        baseline_values=floats(steps),
        rewards=floats(steps),
        end_reason=EndReason.GOVERNOR if terminated else EndReason.HORIZON,
        terminated=terminated,
        truncated=not terminated,
        final_obs=floats(features),
        final_blueprint_indices=rng.integers(-1, 6, size=slots),
        final_masks=rng.random(sum(head_sizes)) < 0.5,
        bootstrap_value=float(rng.standard_normal()),
        initial_state=state(1),
        states=state(-(-(burn_in + steps) // state_stride)),
        state_stride=state_stride,
        burn_in=BurnIn(floats(burn_in, features), rng.integers(-1, 6, size=(burn_in, slots)), -1) if burn_in else None,
        telemetry={"final_accuracy": float(rng.random()), "doublings": float(rng.random())},
    )
    return dataclasses.replace(episode, **changes)


def make_weights(version: int = 0, generation: int = 1, *, size: int = 8, **changes: Any) -> WeightSet:
    """Weights of a few small tensors of several dtypes, drawn from `version`."""
    rng = np.random.default_rng(version)
    tensors: dict[str, NDArray[Any]] = {
        "encoder.weight": rng.standard_normal((size, 4)).astype(np.float32),
        "normalizer.count": np.array(version, dtype=np.int64),
        "popart.mean": rng.standard_normal(1),
    }
    weights = WeightSet(version, generation, "spaces", '{"hidden_size":8}', 8, tensors, 16)
    return dataclasses.replace(weights, **changes)
