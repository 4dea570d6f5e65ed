"""RLlib, new API stack: `python -m benchmarks.peers.rllib`, with ray[rllib], msgpack and msgpack_numpy installed."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from benchmarks.peers.probe import ACTIONS, Claim, ProbeEnv, illegal_share, report

PORT = 5655


def _config(actions: str, recurrent: bool, mask_in_obs: bool = False) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune import register_env

    register_env("probe", lambda config: ProbeEnv(**config))
    return (
        PPOConfig()
        .environment("probe", env_config={"actions": actions, "mask_in_obs": mask_in_obs})
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .training(train_batch_size=128, minibatch_size=64, num_epochs=1)
        .rl_module(model_config=DefaultModelConfig(use_lstm=recurrent, max_seq_len=8))
    )


def _train(config: Any, iterations: int = 2) -> dict[str, Any]:
    algorithm = config.build_algo()
    try:
        for _ in range(iterations):
            result: dict[str, Any] = algorithm.train()
    finally:
        algorithm.stop()
    return result


def _recurrent(actions: str) -> str:
    _train(_config(actions, recurrent=True))
    return illegal_share()


def _masked(actions: str, recurrent: bool) -> str:
    """With the module that RLlib's examples ship for masks."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule

    spec = RLModuleSpec(
        module_class=ActionMaskingTorchRLModule, model_config=DefaultModelConfig(use_lstm=recurrent, max_seq_len=8)
    )
    _train(_config(actions, recurrent, mask_in_obs=True).rl_module(rl_module_spec=spec))
    return illegal_share()


def _external() -> str:
    """CartPole in a client of RLlib's examples, which infers by itself and sends episodes over TCP."""
    import gymnasium
    import numpy as np
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.external.env_runner_server_for_external_inference import EnvRunnerServerForExternalInference
    from ray.rllib.examples.envs.classes.utils.dummy_external_client import _dummy_external_client

    threading.Thread(target=_dummy_external_client, args=(PORT + 1,), daemon=True).start()
    config = (
        PPOConfig()
        .environment(
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
            action_space=gymnasium.spaces.Discrete(2),
            env_config={"port": PORT},
        )
        .env_runners(num_env_runners=1, env_runner_cls=EnvRunnerServerForExternalInference)
        .training(train_batch_size=256, minibatch_size=64, num_epochs=1)
    )
    result = _train(config)
    return f"{result['num_env_steps_sampled_lifetime']:.0f} steps of one client"


def _accounts() -> str:
    """Counters of one training with two environment runners, one of which is killed between two iterations."""
    import ray
    from ray.tune.utils import flatten_dict

    config = _config("discrete", recurrent=True).env_runners(num_env_runners=2)
    algorithm = config.fault_tolerance(restart_failed_env_runners=True).build_algo()
    try:
        algorithm.train()
        ray.kill(next(iter(algorithm.env_runner_group._worker_manager._actors.values())), no_restart=False)
        for _ in range(2):
            result = flatten_dict(algorithm.train())
    finally:
        algorithm.stop()
    kinds = ("env_steps_sampled_lifetime", "steps_trained_lifetime", "dropped_lifetime", "worker_restarts")
    return ", ".join(f"{name} {value:.0f}" for name, value in result.items() if name.endswith(kinds))


CLAIMS: list[Claim] = [
    *((f"PPO with LSTM, {actions} actions", partial(_recurrent, actions)) for actions in ACTIONS),
    ("mask module, discrete actions", partial(_masked, "discrete", False)),
    *(
        (f"mask module with LSTM, {actions} actions", partial(_masked, actions, True))
        for actions in ACTIONS
        if actions != "box"
    ),
    ("external environment", _external),
    ("accounts, one runner killed", _accounts),
]

if __name__ == "__main__":
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    report(("ray", "torch"), CLAIMS)
