"""Trains a recurrent policy with masked actions in RLlib's own PPO. Run: python examples/train_with_rllib.py

It decides how hosts of three units grow on the task `rings`. `tamiyo serve --checkpoint rllib-policy` serves it.
"""

import sys
from math import inf

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN

import tamiyo

HOSTS = {
    "tasks": ("rings",),
    "host_width": 3,
    "horizon_epochs": 10,
    "inner_steps": 8,
    "points_per_doubling": 1.0,
    "points_per_compute_doubling": 0.0,
}

tamiyo.register_with_rllib()
config = (
    PPOConfig()
    .environment("tamiyo/SeedTraining-v0", env_config=HOSTS)
    .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
    .learners(num_learners=0)
    .rl_module(
        rl_module_spec=RLModuleSpec(
            module_class=tamiyo.TamiyoRLModule,
            model_config={"policy": {"hidden_size": 64, "encoder_size": 64}, "max_seq_len": 10},
        )
    )
    .training(
        gamma=1.0,
        lambda_=0.97,
        lr=1e-3,
        train_batch_size_per_learner=640,
        minibatch_size=320,
        num_epochs=6,
        entropy_coeff=0.01,
        vf_loss_coeff=1e-3,  # returns are points: their squares are large
        vf_clip_param=inf,
        use_kl_loss=False,
        grad_clip=0.5,
    )
    .debugging(seed=0)
)

if __name__ == "__main__":
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    algorithm = config.build_algo()
    for update in range(1, updates + 1):
        result = algorithm.train()
        print(f"update {update:3}  J {result[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN]:6.1f}", flush=True)
    path = algorithm.get_module().save("rllib-policy")
    algorithm.stop()
    print(f"serve it: tamiyo serve --checkpoint {path}")
