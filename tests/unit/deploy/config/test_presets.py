"""The values of the presets that were asked for. A change of one is a decision, not an accident."""

from __future__ import annotations

from deploy.config.schema import PRESETS
from learner.ppo.optimizer import WEIGHT_DECAY


def test_preset_tamiyo_has_the_values_that_were_asked_for() -> None:
    config = PRESETS["tamiyo"].in_force
    learner, policy, env = config.learner, config.policy, config.env
    assert (learner.gamma, learner.gae_lambda, env.horizon_epochs, env.time_limit) == (1.0, 0.97, 25, "terminated")
    assert (learner.batch_episodes, learner.update_epochs, learner.minibatches) == (64, 1, 1)
    assert (learner.lr, learner.grad_clip, WEIGHT_DECAY) == (2.5e-4, 0.5, 1e-4)
    assert (learner.objective, learner.ratio, learner.clip) == ("clipped", "per_head", 0.2)
    assert (learner.value_clip, learner.value_coef) == (0.2, 0.5)
    assert (learner.entropy_start, learner.entropy_end, learner.entropy_anneal_updates) == (0.05, 0.005, 200)
    assert (learner.target_kl, learner.max_policy_lag, learner.state_stride) == (0.02, 4, 8)
    assert (learner.chunk_length, learner.burn_in) == (None, 0)  # whole episodes
    assert (policy.core, policy.hidden_size, policy.num_layers, policy.head_width) == ("lstm", 128, 1, 64)
    assert (policy.critic, policy.heads, policy.encoder, policy.popart) == ("v", "conditioned", "slots", True)


def test_preset_quick_has_the_values_that_were_asked_for() -> None:
    learner = PRESETS["quick"].learner
    assert (learner.batch_episodes, learner.update_epochs, learner.minibatches, learner.lr) == (32, 4, 4, 1e-3)


def test_preset_general_has_the_values_that_were_asked_for() -> None:
    config = PRESETS["general"]
    learner = config.learner
    assert (learner.gamma, learner.gae_lambda, learner.update_epochs, learner.chunk_length) == (0.99, 0.95, 10, 64)
    assert (learner.entropy_start, learner.entropy_end, config.gym.max_segment_steps) == (0.01, 0.01, 256)
