"""A small deterministic fleet and a small network, for tests of acting and learning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.config import PolicyConfig
from actors.policy.cores.sequences import SequenceLayout, Steps
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.rollout import wave as rollout
from actors.types.actions import ActionMasks, ActionSpec, Head
from actors.types.episode import EndReason, Episode
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces

SPEC = ActionSpec(
    (
        Head("op", ("WAIT", "PLANT", "CUT")),
        Head("slot", ("0", "1")),
        Head("kind", ("a", "b", "c")),
        Head("speed", ("slow", "fast")),
    ),
    ((True, False, False, False), (True, True, True, True), (True, True, False, True)),
)
SPACES = Spaces(SPEC, base_size=4, slot_size=3, slots=2, num_blueprints=4)
_SALT = 10_000


def toy_seed(length: int, truncated: bool, salt: int = 0) -> int:
    """The environment seed of an episode of `length` steps and a kind of end; `salt` sets rewards and noise."""
    return salt * _SALT + truncated * (_SALT // 2) + length


def random_masks(rng: np.random.Generator, spec: ActionSpec = SPEC) -> ActionMasks:
    """Masks of one state, `op [O]`, `slot [O, S]`, `rest [O, S, R]`: legal ops are possible, the rest is anything."""
    ops, slots = spec.num_ops, spec.num_slots
    op, slot = rng.random(ops) < 0.7, rng.random((ops, slots)) < 0.6
    rest = rng.random((ops, slots, spec.rest_size)) < 0.5
    if not op.any():
        op[rng.integers(ops)] = True
    if rng.random() < 0.2:  # one legal op, with one legal choice in every head
        op[:], slot[:], rest[:] = False, False, False
        op[rng.integers(ops)] = True
    for o in np.flatnonzero(op):
        if spec.relevance[o][1] and not slot[o].any():
            slot[o, rng.integers(slots)] = True
        for s in np.flatnonzero(slot[o]):
            for k in range(2, len(spec.heads)):
                part = rest[o, s, spec.offsets[k] - spec.offsets[2] :][: spec.sizes[k]]
                if spec.relevance[o][k] and not part.any():
                    part[rng.integers(spec.sizes[k])] = True
    return ActionMasks(op, slot, rest)


class _ToyEnv:
    """Observation, masks and reward are functions of (seed, step, all actions so far)."""

    def __init__(self, seed: int) -> None:
        self.seed, self.step_index, self.history = seed, 0, 0
        self.length, self.truncates = seed % (_SALT // 2), bool(seed % _SALT >= _SALT // 2)
        self.scale = 10.0 ** (seed // _SALT % 4 - 1)
        self.running = True

    def look(self) -> tuple[NDArray[np.float32], NDArray[np.int64], ActionMasks]:
        rng = np.random.default_rng((self.seed, self.step_index, self.history))
        obs = rng.standard_normal(SPACES.obs_size).astype(np.float32)
        return obs, rng.integers(-1, SPACES.num_blueprints, SPACES.slots), random_masks(rng)

    def step(self, action: NDArray[np.int64]) -> float:
        self.history = (self.history * 31 + int(action @ np.array([1, 3, 7, 13])) + 1) % 2**31
        self.step_index += 1
        self.running = self.step_index < self.length
        rng = np.random.default_rng((self.seed, self.step_index, self.history, 1))
        return float(rng.standard_normal() * self.scale)


class ToyFleet:
    """Stands in for a `SeedTrainingFleet`, over `_ToyEnv`; it shows the same arrays at every step,
    overwritten in place."""

    env_id = "toy"
    spaces = SPACES

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.obs = np.zeros((num_envs, SPACES.obs_size), dtype=np.float32)
        self.blueprints = np.zeros((num_envs, SPACES.slots), dtype=np.int64)
        shape = num_envs, SPEC.num_ops, SPEC.num_slots, SPEC.rest_size
        self.masks = ActionMasks(*(np.zeros(shape[:dims], dtype=np.bool_) for dims in (2, 3, 4)))

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        self.envs = [_ToyEnv(int(seed)) for seed in seeds]
        return self._show(np.zeros(self.num_envs, dtype=np.float32), np.zeros(self.num_envs, dtype=np.bool_))

    def step(self, actions: NDArray[np.int64]) -> FleetStep:
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        ended = np.zeros(self.num_envs, dtype=np.bool_)
        for e, env in enumerate(self.envs):
            if env.running:
                rewards[e] = env.step(actions[e])
                ended[e] = not env.running
        return self._show(rewards, ended)

    def task_ids(self) -> tuple[str, ...]:
        return tuple(f"toy-{env.seed}" for env in self.envs)

    def _show(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_]) -> FleetStep:
        for e, env in enumerate(self.envs):
            self.obs[e], self.blueprints[e], masks = env.look()
            for shown, own in zip(self.masks, masks, strict=True):
                shown[e] = own  # type: ignore[index]
        truncates = np.array([env.truncates for env in self.envs])
        reasons = tuple(EndReason.ENVIRONMENT if end else None for end in ended)
        telemetry = tuple(
            {"final_accuracy": float(env.length)} if end else {} for env, end in zip(self.envs, ended, strict=True)
        )
        return FleetStep(
            self.obs, self.blueprints, self.masks, rewards, ended & ~truncates, ended & truncates, reasons, telemetry
        )


CORES = ("lstm", "lstm+memory", "feedforward")
CRITICS = ("v", "q_op")
POLICIES = [{"core": core, "critic": critic} for core in CORES for critic in CRITICS]


def toy_network(seed: int = 0, **changes: Any) -> FactoredRecurrentActorCritic:
    """A small network whose parameters and statistics are all away from their first values."""
    sizes = {
        "hidden_size": 12,
        "encoder_size": 10,
        "head_size": 8,
        "num_layers": 2,
        "memory_cells": 4,
        "memory_size": 5,
    }
    others: dict[str, Any] = {"blueprint_embedding": 3, "choice_embedding": 4, "probability_floor": 0.02}
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = FactoredRecurrentActorCritic(SPACES, PolicyConfig(**(sizes | others | changes)))
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.3 * torch.randn_like(p))
        network.encoder.update_normalizer(0.5 + 2.0 * torch.randn(50, SPACES.obs_size))
        scale, output = network.value_normalizer, network.value_output
        weight, bias = output.weight.clone(), output.bias.clone()
        scale.update(3.0 + 4.0 * torch.randn(50), output)
        if network.config.popart:  # the first update clears the layer; later ones would have rescaled it like this
            output.weight.copy_(weight * (1.0 / scale.std).to(weight.dtype))
            output.bias.copy_((bias - scale.mean) / scale.std)
    return network


def single_steps(obs: Tensor, blueprints: Tensor, actions: Tensor, masks: Tensor, state: PolicyState) -> Steps:
    """The first steps of as many episodes, one row each."""
    return Steps(obs, blueprints, actions, masks, state, SequenceLayout([1] * len(obs), 1.3, obs.device))


def toy_wave(
    network: rollout.Policy,
    seeds: Sequence[int],
    *,
    state_stride: int = 1,
    version: int = 0,
    generation: int = 1,
    names: Iterator[int] | None = None,
) -> list[Episode]:
    """`run_wave` over a fresh toy fleet, with the ids that an outbox would give."""
    numbers = iter(range(len(seeds))) if names is None else names
    source = rollout.Provenance(version, generation, state_stride, run_seed=5)
    episodes = rollout.run_wave(ToyFleet(len(seeds)), network, seeds, source)
    return [replace(e, episode_id=f"run/actor0/0/{next(numbers)}") for e in episodes]
