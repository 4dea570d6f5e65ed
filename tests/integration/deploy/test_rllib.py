"""RLlib's env runner plays a policy in the seed-training environment, its PPO trains it, and our endpoint serves it."""

from __future__ import annotations

import runpy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN

from actors.config import PolicyConfig
from actors.env import make_env
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.saved import read_weights
from actors.serving.client.blocking import PolicyClient
from actors.slots.spaces import seed_spaces
from actors.types.actions import ActionMasks
from deploy.rllib import MASKS, MasksObserved, TamiyoRLModule, register_with_rllib
from learner.ppo.optimizer import make_optimizer
from learner.run.checkpoint import LearnerProgress, load_network, save_checkpoint
from tests.support.learning.toy import CORES, single_steps
from tests.support.serving.servers import serving

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
EXAMPLE = Path(__file__).parents[3] / "examples/train_with_rllib.py"
ENV = {"tasks": ("moons",), "horizon_epochs": 5, "inner_steps": 2, "slots": 2, "run_seed": 1}


@torch.no_grad()
def perturb(module: torch.nn.Module) -> None:
    for p in module.parameters():
        p.add_(0.3 * torch.randn_like(p))


def checkpoint(folder: Path, core: str) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = PolicyConfig(hidden_size=12, encoder_size=10, head_size=8, core=core, num_layers=2)
    network = FactoredRecurrentActorCritic(seed_spaces(5), config)
    perturb(network)
    save_checkpoint(folder, network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(), (), 8, 1)
    return folder


def module_of(env: Any, **model: Any) -> TamiyoRLModule:
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return TamiyoRLModule(**spaces, model_config=model)


@contextmanager
def runner(folder: Path) -> Iterator[SingleAgentEnvRunner]:
    register_with_rllib()
    spec = RLModuleSpec(module_class=TamiyoRLModule, model_config={"checkpoint": str(folder), "max_seq_len": 5})
    config = PPOConfig().environment("tamiyo/SeedTraining-v0", env_config=ENV).rl_module(rl_module_spec=spec)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    env_runner = SingleAgentEnvRunner(config=config)
    try:
        yield env_runner
    finally:
        env_runner.stop()


def replay(episode: Any, folder: Path, keep_state: bool = True) -> float:
    """The largest difference between the log-probs recorded by RLlib and those of the policy for the same actions."""
    policy = load_network(folder, 4)
    state, worst = policy.initial_state(1), 0.0
    for t in range(len(episode)):
        seen = episode.get_observations(t)
        masks = ActionMasks(*(np.asarray(seen[k])[None].astype(bool) for k in MASKS))
        obs, blueprints = np.asarray(seen["obs"])[None], np.asarray(seen["blueprint_indices"])[None]
        action = np.asarray(episode.get_actions(t))[None]
        in_force = masks.in_force(policy.spaces.action, action)
        assert (policy.spaces.action.split(in_force)[0][0, action[0, 0]]).all()
        step = (torch.from_numpy(a) for a in (obs, blueprints, action, in_force))
        with torch.no_grad():
            known = policy.evaluate_steps(single_steps(*step, state))
        recorded = float(episode.get_extra_model_outputs(Columns.ACTION_LOGP, t))
        worst = max(worst, abs(float(known.log_probs.sum()) - recorded))
        _, after = policy.act(obs, blueprints, masks, state, np.zeros(action.shape))
        state = after if keep_state else state
    return worst


@pytest.mark.parametrize(
    "core", [pytest.param(core, marks=[pytest.mark.long] * (core != "lstm+memory")) for core in CORES]
)
def test_rllibs_env_runner_plays_a_checkpoint_with_its_state(core: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, core)
    with runner(folder) as env_runner:
        episodes = env_runner.sample(num_episodes=2, explore=True)
        assert [(len(e), e.is_terminated) for e in episodes] == [(5, True)] * 2
        assert max(replay(e, folder) for e in episodes) < 1e-4
        if core != "feedforward":  # a state that stays behind is caught
            assert max(replay(e, folder, keep_state=False) for e in episodes) > 1e-3
        assert len(env_runner.sample(num_episodes=1, explore=False)[0]) == 5


def test_the_module_acts_where_its_policy_is(tmp_path: Path) -> None:
    """On `meta`, which has no values (and no LSTM), an input that stays on the CPU is an error."""
    env = MasksObserved(make_env(**ENV))
    module = module_of(env, checkpoint=str(checkpoint(tmp_path, "feedforward"))).to("meta")
    obs, _ = env.reset(seed=0)
    batch = {Columns.OBS: {name: torch.from_numpy(np.asarray(a))[None].to("meta") for name, a in obs.items()}}
    for forward in (module.forward_exploration, module.forward_inference):
        output = forward(batch)
        assert {output[name].device.type for name in (Columns.ACTIONS, Columns.ACTION_LOGP)} == {"meta"}


def test_a_missing_checkpoint_and_missing_masks_are_reported() -> None:
    env = make_env(**ENV)
    masked = MasksObserved(env)
    for seen, config, words in (
        (env, {"checkpoint": "x"}, "register"),
        (masked, {}, "model_config has no policy"),
        (masked, {"policy": {}, "checkpoint": "x"}, "model_config has no policy"),
        (masked, {"policy": {"critic": "q_op"}}, r"choose policy\.critic v"),
    ):
        with pytest.raises(UserError, match=words):
            module_of(seen, **config)
    assert masked.observation_space.contains(masked.reset(seed=0)[0])


@pytest.mark.parametrize("core", ["lstm", pytest.param("feedforward", marks=pytest.mark.long)])
def test_training_sees_the_log_probs_with_which_it_acted_and_nothing_of_the_padding(core: str, tmp_path: Path) -> None:
    with runner(checkpoint(tmp_path, core)) as env_runner:
        episodes = env_runner.sample(num_episodes=3, explore=True)
        module = env_runner.module
        assert isinstance(module, TamiyoRLModule)
        batch = padded(module, episodes, steps=7)
        out = module._forward_train(batch)  # an env runner refuses to train its copy
        taken = module.get_train_action_dist_cls().from_logits(out[Columns.ACTION_DIST_INPUTS])
        log_probs = taken.logp(batch[Columns.ACTIONS])
        assert torch.allclose(log_probs[:, :5], batch[Columns.ACTION_LOGP][:, :5], atol=1e-4)
        values = module.compute_values(batch)
        assert torch.allclose(values, out[Columns.EMBEDDINGS], atol=1e-5)
        (log_probs[:, :5].sum() + values[:, :5].sum()).backward()
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        assert grads
        assert all(g.isfinite().all() for g in grads)


def padded(module: TamiyoRLModule, episodes: list[Any], steps: int) -> dict[str, Any]:
    """Whole episodes as RLlib's learner gives them to a stateful module: `[B, steps, ...]` with zeros after the end."""

    def rows(values: list[Any]) -> torch.Tensor:
        short = np.stack([np.asarray(v) for v in values])
        return torch.from_numpy(np.pad(short, [(0, 0), (0, steps - short.shape[1])] + [(0, 0)] * (short.ndim - 2)))

    seen = [e.get_observations(slice(0, len(e))) for e in episodes]
    return {
        Columns.OBS: {name: rows([o[name] for o in seen]) for name in seen[0]},
        Columns.ACTIONS: rows([e.get_actions() for e in episodes]),
        Columns.ACTION_LOGP: rows([e.get_extra_model_outputs(Columns.ACTION_LOGP) for e in episodes]),
        Columns.STATE_IN: {name: t.expand(len(episodes), *t.shape) for name, t in module.get_initial_state().items()},
    }


def test_our_endpoint_serves_the_policy_of_a_module(tmp_path: Path) -> None:
    env = MasksObserved(make_env(**ENV))
    module = module_of(env, policy={"hidden_size": 16})
    perturb(module)
    assert_served(module, env, tmp_path)


def assert_served(module: TamiyoRLModule, env: MasksObserved, folder: Path) -> None:
    """In an episode it has the values that RLlib's PPO sees, state by state."""
    served: list[float] = []
    observed: list[dict[str, Any]] = []
    with serving(read_weights(module.save(folder))) as running, PolicyClient(running.address) as client:
        obs, session, done = env.reset(seed=3)[0], client.open(), False
        while not done:
            masks = ActionMasks(*(obs[name].astype(bool) for name in MASKS))
            answer = session.step(obs["obs"], obs["blueprint_indices"], masks)
            served.append(answer.value)
            observed.append(obs)
            obs, _, done, _, _ = env.step(answer.action)
    batch = {
        Columns.OBS: {name: torch.from_numpy(np.stack([o[name] for o in observed]))[None] for name in observed[0]},
        Columns.STATE_IN: {name: t[None] for name, t in module.get_initial_state().items()},
    }
    assert len(set(served)) > 1
    assert module.compute_values(batch)[0].tolist() == pytest.approx(served, abs=1e-3)


@pytest.mark.long
def test_rllibs_ppo_trains_the_example_in_three_minutes(tmp_path: Path) -> None:
    """From 8 points of J, of acting at random, to 15 and more; and our endpoint serves the policy."""
    example = runpy.run_path(str(EXAMPLE), run_name="example")
    algorithm, began = example["config"].build_algo(), time.process_time()
    try:
        returns = [algorithm.train()[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN] for _ in range(25)]
        assert time.process_time() - began < 180
        assert np.mean(returns[-5:]) > np.mean(returns[:5]) + 5
        assert_served(algorithm.get_module(), MasksObserved(make_env(**example["HOSTS"])), tmp_path)
    finally:
        algorithm.stop()
