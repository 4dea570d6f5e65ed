"""A prior: divergence from it has a price, which is taken from the rewards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.config import QueueConfig
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.episode import Episode
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.prior import Prior
from learner.run.checkpoint import LearnerProgress, save_checkpoint
from learner.service import LearnerService, LearnerSettings
from tests.support.learning.batches import evaluate_batch
from tests.support.learning.toy import CORES, SPACES, SPEC, toy_network, toy_seed, toy_wave

HEADS = range(len(SPEC.heads))


def played(network: FactoredRecurrentActorCritic, salt: int = 0, count: int = 8) -> list[Episode]:
    return toy_wave(network, [toy_seed(2 + k % 7, truncated=k % 2 == 0, salt=salt + k) for k in range(count)])


@pytest.mark.parametrize("core", CORES)
def test_nats_of_each_step(core: str) -> None:
    """Against one whole episode at a time, unpadded, added up in plain loops."""
    acting, taught = toy_network(core=core), toy_network(seed=1, core=core)
    episodes = played(acting)
    batch = make_batch(episodes, SPACES)
    nats = Prior(taught).nats(batch)
    expected = list[float]()
    for episode in episodes:
        with torch.no_grad():
            own = evaluate_batch(taught, make_batch([episode], SPACES)).log_probs.numpy()
        for t in range(len(episode)):
            relevant = SPEC.relevance[int(episode.actions[t, 0])]
            total = sum(float(episode.log_probs[t, h] - own[t, h]) for h in HEADS if relevant[h])
            expected.append(0.0 if batch.forced[len(expected)] else total)
    assert nats.tolist() == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 0.1
    assert Prior(toy_network(core=core)).nats(batch).abs().max() < 1e-4  # of the policy that acted


def test_only_what_was_chosen_freely_is_charged() -> None:
    batch = make_batch(played(toy_network()), SPACES)
    prior = Prior(toy_network(seed=1))
    charged, metrics = prior.charge(batch, 0.5)
    assert torch.allclose(batch.rewards - charged.rewards, 0.5 * prior.nats(batch), atol=1e-6)
    free = ~batch.forced
    assert batch.forced.any()
    assert (charged.rewards == batch.rewards)[~free].all()
    assert float(metrics["prior_kl"]) == pytest.approx(float(prior.nats(batch).sum() / free.sum()))


def test_a_resumed_run_whose_prior_is_gone_says_where_it_was(tmp_path: Path) -> None:
    """And one that keeps no prior does not ask for it: it gets as far as the server, which is not there either."""
    network = toy_network()
    save_checkpoint(
        tmp_path / "checkpoints", network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(version=1), (), 8, 3
    )

    def resumed(config: LearnerConfig) -> LearnerService:
        queue, gone = QueueConfig(), str(tmp_path / "taught.safetensors")
        return LearnerService(
            LearnerSettings(config, network.config, queue, SPACES, str(tmp_path), 0, "nowhere://", "run", None, gone)
        )

    with pytest.raises(UserError, match=r"no checkpoint at .*taught\.safetensors"):
        resumed(LearnerConfig(prior_coef=1.0)).start()
    with pytest.raises(UserError, match="invalid Redis URL"):
        resumed(LearnerConfig()).start()
