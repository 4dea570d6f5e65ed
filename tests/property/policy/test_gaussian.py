"""Continuous heads against torch.distributions and numerical integration; network, acting policy and learner agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from actors.codec import decode_episode, encode_episode
from actors.config import GymConfig, PolicyConfig
from actors.gym.fleet import GymFleet
from actors.gym.make import make_vector_env
from actors.policy.acting.exported import INPUTS, OUTPUTS, ExportedStep, example_inputs, export_step
from actors.policy.acting.onnx import onnx_step
from actors.policy.acting.policy import ActingPolicy
from actors.policy.distribution import QUADRATURE, cell_log_prob, gaussian_entropy, sample_cells
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, to_weights
from actors.rollout.stream import EpisodeStream
from actors.rollout.wave import Provenance
from actors.types.continuous import CELL_WIDTH, from_cells
from actors.types.episode import Episode
from learner.ppo.batch import make_batch
from learner.schema import EpisodeSchema
from tests.support.env import gym_envs  # noqa: F401, registers its environments
from tests.support.learning.batches import evaluate_batch


def parameters(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(50, 3, generator=rng), torch.rand(50, 3, generator=rng) * 3 - 2


def test_log_probs_are_those_of_torch_distributions_times_the_cell() -> None:
    mean, log_std = parameters(0)
    noise = torch.rand(50, 3, dtype=torch.float64)
    cells, ours = sample_cells(mean, log_std, noise, False)
    u = torch.from_numpy(from_cells(cells.numpy()))
    normal = torch.distributions.Normal(mean.double(), log_std.double().exp())
    assert torch.allclose(ours.double(), normal.log_prob(u) + np.log(CELL_WIDTH), atol=1e-4)
    assert torch.allclose(normal.cdf(u), noise, atol=1e-3)  # inverse transform sampling, up to the grid
    mass = normal.cdf(u + CELL_WIDTH / 2) - normal.cdf(u - CELL_WIDTH / 2)
    likely = mass > 1e-9  # elsewhere, the difference of two numbers near 1 has no digits left
    assert torch.allclose(ours.double()[likely].exp(), mass[likely], rtol=1e-2)
    assert torch.equal(cell_log_prob(cells, mean, log_std), ours)
    assert float(ours.max()) < 0.0


def test_entropy_is_that_of_torch_distributions_also_when_squashed() -> None:
    mean, log_std = parameters(7)
    normal = torch.distributions.Normal(mean.double(), log_std.double().exp())
    plain = gaussian_entropy(mean, log_std, torch.zeros(3, dtype=torch.bool), torch.from_numpy(QUADRATURE))
    assert torch.allclose(plain.double(), normal.entropy(), atol=1e-5)
    squash = torch.distributions.TanhTransform(cache_size=1)
    squashed = torch.distributions.TransformedDistribution(normal, [squash])
    torch.manual_seed(0)
    estimate = -squashed.log_prob(squashed.sample((40_000,))).nan_to_num(0.0, 0.0, 0.0).mean(0)
    ours = gaussian_entropy(mean, log_std, torch.ones(3, dtype=torch.bool), torch.from_numpy(QUADRATURE)).double()
    moderate = (mean.abs() < 2) & (log_std < 0)  # tanh does not round to 1 there
    assert moderate.sum() > 20
    assert torch.allclose(ours[moderate], estimate[moderate], atol=0.05)


def fleet_of(env_id: str, width: int, squash: bool) -> GymFleet:
    return GymFleet(env_id, make_vector_env(GymConfig(id=env_id), width), lambda row: row, squash)


def play(env_id: str, squash: bool, options: dict[str, Any]) -> tuple[FactoredRecurrentActorCritic, list[Episode]]:
    fleet = fleet_of(env_id, 3, squash)
    torch.manual_seed(1)
    network = FactoredRecurrentActorCritic(fleet.spaces, PolicyConfig(hidden_size=16, head_size=8, **options)).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    network = from_weights(to_weights(network, 1, 0, 1))
    acting = ActingPolicy(network)
    assert acting.form == "eager"  # kernels have no continuous actions
    stream, episodes = EpisodeStream(fleet, acting, 0, 64), list[Episode]()
    while len(episodes) < 5:
        episodes += stream.advance(acting, Provenance(1, 0, 1, 0))
    return network, [decode_episode(encode_episode(e)) for e in episodes]


@pytest.mark.parametrize(
    ("env_id", "squash", "options"),
    [
        ("tests/Continuous-v0", False, {}),
        ("tests/Mixed-v0", True, {"log_std": "state", "core": "feedforward"}),
        ("tests/Mixed-v0", False, {"critic": "q_op"}),
    ],
)
def test_the_learner_reproduces_what_the_actor_did(env_id: str, squash: bool, options: dict[str, Any]) -> None:
    network, episodes = play(env_id, squash, options)
    batch = make_batch(episodes, network.spaces)
    assert not batch.forced.any()
    with torch.no_grad():
        out = evaluate_batch(network, batch)
    assert torch.allclose(out.log_probs, batch.log_probs, atol=2e-5)
    for episode in episodes:
        EpisodeSchema(network.spaces, network.core.sizes, 1).check(episode)


@pytest.mark.long  # PyTorch's exporter takes seconds
def test_exported_steps_sample_as_the_network_does(tmp_path: Path) -> None:
    """As a program of PyTorch and in ONNX, which has no inverse error function: Wichura's rational functions take its
    place."""
    network, _ = play("tests/Mixed-v0", True, {})
    step, program = onnx_step(network), export_step(network).module()
    step.program.save(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    inputs = dict(zip(INPUTS, example_inputs(network, 512), strict=True))
    rng = torch.Generator().manual_seed(0)
    inputs["obs"] = torch.randn(inputs["obs"].shape, generator=rng)
    inputs["noise"] = torch.rand(inputs["noise"].shape, generator=rng, dtype=torch.float64)
    for row, tail in enumerate((0.0, 1e-9, 0.5, 1.0 - 1e-9, 1.0 - 2.0**-53)):
        inputs["noise"][row] = tail
    for greedy in (False, True):
        inputs["deterministic"] = torch.tensor(greedy)
        with torch.no_grad():
            ours = dict(zip(OUTPUTS, ExportedStep(network)(*inputs.values()), strict=True))
            for expected, theirs in zip(ours.values(), program(*inputs.values()), strict=True):
                torch.testing.assert_close(theirs, expected, rtol=1e-5, atol=1e-5)
        found = session.run(None, {name: inputs[name].numpy() for name in step.inputs})
        for name, theirs in zip(step.outputs, found, strict=True):
            expected = ours[name.removeprefix("next_")].numpy()
            if name == "actions":  # cells of 1.5e-5: values may differ by rounding, choices may not
                assert np.array_equal(expected[:, 0], theirs[:, 0])
                assert np.abs(expected - theirs).max() <= 2
            else:
                np.testing.assert_allclose(theirs, expected, atol=2e-4 if name == "log_probs" else 1e-5)


@pytest.mark.parametrize("squash", [False, True])
def test_values_reach_the_environment_within_bounds_and_in_place(squash: bool) -> None:
    """`tests/Mixed-v0` checks every action against its space; here, their values against the formula."""
    fleet = fleet_of("tests/Mixed-v0", 2, squash)
    u = np.array([[0.5, -0.25], [7.0, -9.0]])
    cells = np.round((u + 2**15) * 2**16).astype(np.int64)
    given = fleet._converter.env_actions(np.concatenate([[[2], [0]], cells], 1))
    unit = np.tanh(u) if squash else np.clip(u, -1, 1)
    assert given["gear"].tolist() == [3, 1]  # the Discrete space starts at 1
    assert np.allclose(given["hands"][0], [1 + 2 * unit[:, 0]], atol=1e-4)  # from -1 to 3
    assert np.allclose(given["hands"][1], unit[:, 1:], atol=1e-4)
