"""`critic: q_op`: the value is Q of the chosen op, the baseline its expectation, the bootstrap value one of the two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks
from tests.support.learning.batches import evaluate_batch, toy_batch
from tests.support.learning.toy import SPACES, random_masks, toy_network

COUNT = 400


def state_of_the_world(seed: int) -> tuple[np.ndarray, np.ndarray, ActionMasks]:
    """Repeat one state, so that the samples cover the whole distribution."""
    rng = np.random.default_rng(seed)
    obs = np.tile(rng.standard_normal(SPACES.obs_size).astype(np.float32), (COUNT, 1))
    one = random_masks(rng)
    masks = ActionMasks(*(np.broadcast_to(m, (COUNT, *m.shape)).copy() for m in one))
    return obs, np.tile(rng.integers(-1, 4, SPACES.slots), (COUNT, 1)), masks


def q_by_hand(network: FactoredRecurrentActorCritic, obs: np.ndarray, blueprints: np.ndarray) -> np.ndarray:
    """Compute Q `[ops]`, denormalized, from the network's modules."""
    with torch.no_grad():
        encoded = network.encoder(torch.from_numpy(obs[:1]), torch.from_numpy(blueprints[:1]))
        core = network.norm(network.core.step(encoded.core_input, network.initial_state(1)).output)
        scale = network.value_normalizer
        return (network.critic(core)[0].double() * scale.std + scale.mean).numpy()


@pytest.mark.parametrize(
    ("core", "bootstrap"), [("lstm", "expected"), ("lstm+memory", "sampled"), ("feedforward", "expected")]
)
def test_values_match_enumeration(core: str, bootstrap: str) -> None:
    """The expectation over legal ops uses the probabilities with which ops were sampled."""
    network = toy_network(core=core, critic="q_op", bootstrap=bootstrap)
    for seed in range(12):
        obs, blueprints, masks = state_of_the_world(seed)
        noise = np.random.default_rng(seed).random((COUNT, 4))
        noise[:, 0] = (np.arange(COUNT) + 0.5) / COUNT
        decision, _ = network.act(obs, blueprints, masks, network.initial_state(COUNT), noise)
        q, ops = q_by_hand(network, obs, blueprints), decision.actions[:, 0]
        assert np.allclose(decision.values, q[ops], rtol=1e-4, atol=1e-4)
        probability = {op: float(np.exp(decision.log_probs[ops == op][0, 0])) for op in set(ops.tolist())}
        expected = sum(p * q[op] for op, p in probability.items())
        assert abs(sum(probability.values()) - 1.0) < 0.02
        assert np.allclose(decision.baseline_values, expected, rtol=0.02, atol=0.02 * float(np.abs(q).max()))
        assert decision.values.mean() == pytest.approx(float(decision.baseline_values[0]), rel=0.05, abs=0.1)
        wanted = decision.values if bootstrap == "sampled" else decision.baseline_values
        assert (decision.bootstrap_values == wanted).all()


def test_the_baseline_has_no_gradient_and_the_value_only_that_of_its_op() -> None:
    network, batch = toy_network(critic="q_op"), toy_batch()
    out, ops = evaluate_batch(network, batch), batch.actions[:, 0]
    assert not out.baseline_values.requires_grad
    for op in range(3):
        assert (ops == op).any()
        (grad,) = torch.autograd.grad(out.values[ops == op].sum(), network.value_output.weight, retain_graph=True)
        assert grad.any(1).tolist() == [n == op for n in range(3)]
