"""Programs of the learner for `device_programs`, and what may make a GPU wait. Each takes the device to run on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from actors.config import PolicyConfig
from actors.gym.fleet import GymFleet
from actors.policy.acting.exported import example_inputs
from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import FactoredRecurrentActorCritic, MaskTensors
from actors.policy.state import PolicyState
from actors.rollout.stream import EpisodeStream
from actors.rollout.wave import Provenance
from actors.types.episode import Episode
from learner.ppo.batch import make_batch
from tests.support.env.gym_envs import Mixed
from tests.support.learning.batches import toy_batch, toy_ppo
from tests.support.learning.toy import toy_network, toy_seed, toy_wave

CPU = torch.device("cpu")
CASES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"core": "lstm+memory", "critic": "q_op"}, {"chunk_length": 4, "burn_in": 2, "prior_coef": 1.0}),
    ({"core": "feedforward", "encoder": "flat"}, {"objective": "decoupled", "ratio": "joint", "precision": "tf32"}),
    ({"heads": "independent", "causal_masks": False}, {"policy_denominator": "head_steps", "chunk_length": 3}),
    ({}, {"chunk_length": 3, "burn_in": 2, "precision": "bf16"}),
)
"""Options of the policy and of the learner."""
LENGTHS = (5, 3, 9, 4)
SEEDS = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]


def same(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    a, b = (np.asarray(t.detach().cpu() if isinstance(t, Tensor) else t) for t in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def comparable(metrics: dict[str, Any]) -> dict[str, Any]:
    """Leave out what differs on purpose: on a CPU, kernels evaluate the network without padding."""
    return {name: value for name, value in metrics.items() if name != "padding_waste"}


class Crossings(TorchDispatchMode):
    """Notes the operators for which the host waits: values that it reads, and blocking copies between devices."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, given = func.overloadpacket.__name__, [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        kinds = {t.device.type for t in (*given, *tree_leaves(out)) if isinstance(t, Tensor)}
        blocking = not (kwargs or {}).get("non_blocking", False) and not (name == "copy_" and True in args[2:])
        copies = name in ("_to_copy", "copy_", "where")  # `where` copies a scalar of the CPU
        if kinds != {"cpu"} and (name in self.READS or (copies and len(kinds) > 1 and blocking)):
            self.seen.append(f"{name} {[list(t.shape) for t in given]}")
        return out


def update(device: torch.device) -> None:
    """With minibatches, chunks, burn-in and a prior. bf16 needs autocast, which is for real devices alone."""
    for policy, learner in CASES if device.type == "cuda" else CASES[:-1]:
        batch = toy_batch(LENGTHS, learner.get("chunk_length"), learner.get("burn_in", 0), **policy)
        rounded = device.type == "cuda" and "precision" in learner

        def updated(to: torch.device, policy: Any = policy, learner: Any = learner, batch: Any = batch) -> Any:
            network, prior = toy_network(**policy).to(to), toy_network(5, **policy)
            ppo = toy_ppo(1e-3, network, prior, update_epochs=1, minibatches=2, target_kl=1e9, **learner)
            return ppo(batch, update=0, version=0), network.state_dict()

        (metrics, weights), (expected, expected_weights) = updated(device), updated(CPU)
        assert metrics.keys() == expected.keys()
        for name in ("loss_policy", "loss_value", "ratio_error") if rounded else comparable(expected):
            same(metrics[name], expected[name], 0.05 if rounded else 1e-4)
        for name, value in ({} if rounded else expected_weights).items():
            same(weights[name], value)


def played(device: torch.device) -> tuple[FactoredRecurrentActorCritic, list[Episode]]:
    """A network whose actions are partly continuous, and episodes that it played on the device."""
    seeds = itertools.count(3)
    envs = SyncVectorEnv([Mixed] * 2, autoreset_mode=AutoresetMode.DISABLED)
    fleet = GymFleet("mixed", envs, lambda row: next(seeds))
    torch.manual_seed(0)
    network = FactoredRecurrentActorCritic(fleet.spaces, PolicyConfig(hidden_size=12)).to(device)
    policy, source = ActingPolicy(network), Provenance(0, 1, 1, run_seed=5)
    stream = EpisodeStream(fleet, policy, 5, 8)
    return network, [e for _ in range(20) for e in stream.advance(policy, source)]


def update_without_waiting(device: torch.device) -> None:
    """From the plan of the minibatches to the metrics of all, an update neither reads a value nor copies one over."""
    synchronizing = torch.cuda.set_sync_debug_mode if device.type == "cuda" else lambda mode: None
    for network, episodes in ((toy_network(), toy_wave(toy_network(), SEEDS)), played(CPU)):
        network.to(device)
        ppo = toy_ppo(1e-3, network, minibatches=3, update_epochs=2, chunk_length=3, burn_in=2)
        ppo.reads_flags = False
        optimize, plan, mode = ppo._optimize, ppo._minibatches, Crossings()

        def planned(*arguments: Any, plan: Any = plan, mode: Any = mode) -> Any:
            found = plan(*arguments)
            synchronizing("error")
            mode.__enter__()
            return found

        def loop(*arguments: Any, optimize: Any = optimize, mode: Any = mode) -> Any:
            try:
                return optimize(*arguments)
            finally:
                mode.__exit__(None, None, None)
                synchronizing("default")

        ppo._minibatches, ppo._optimize = planned, loop  # type: ignore[method-assign]
        ppo(make_batch(episodes, network.spaces, 3, 2), update=0, version=0)
        assert mode.seen == [], mode.seen


def step_without_waiting(device: torch.device) -> None:
    """A step whose inputs are on the device stays there, sampled or not."""
    for network in (toy_network(), toy_network(critic="q_op", causal_masks=False), played(CPU)[0]):
        network.to(device)
        inputs = [t.to(device) for t in example_inputs(network, 2)]
        obs, blueprints, op, slot, rest, *state, noise = (*inputs[:9], inputs[10])
        for deterministic in (True, torch.zeros(2, dtype=torch.bool, device=device)):
            with Crossings() as mode, torch.no_grad():
                network.step(obs, blueprints, MaskTensors(op, slot, rest), PolicyState(*state), noise, deterministic)
            assert mode.seen == [], mode.seen


def continuous(device: torch.device) -> None:
    """Acting and an update with an action that is partly continuous."""

    def learned(to: torch.device) -> tuple[list[Episode], dict[str, float]]:
        network, episodes = played(to)
        return episodes, toy_ppo(1e-3, network)(make_batch(episodes, network.spaces), update=0, version=0)

    (ours, metrics), (theirs, expected) = learned(device), learned(CPU)
    assert len(ours) > 1
    for a, b in zip(ours, theirs, strict=True):
        same(a.log_probs, b.log_probs)
        same(a.rewards, b.rewards)
    for name, value in comparable(expected).items():
        same(metrics[name], value)


LEARNING: tuple[Callable[[torch.device], None], ...] = (
    update,
    update_without_waiting,
    step_without_waiting,
    continuous,
)
