"""Pretraining by imitation: a teacher plays the training tasks, and the policy imitates it before PPO."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from rich.console import Console

from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.rng import Purpose, stream
from actors.types.episode import Episode
from actors.types.spaces import Spaces
from deploy.config.schema import Config
from deploy.imitation.demonstration_files import as_demonstrations, read_demonstrations
from deploy.imitation.teacher import demonstrate
from learner.ppo.imitation import imitate
from learner.run.checkpoint import Checkpoint, LearnerProgress, save_policy

POLICY = "imitated.safetensors"
PASSES = 15  # over the demonstrations


def pretrained_policy(config: Config, spaces: Spaces, run_dir: Path, console: Console, jobs: int) -> Path:
    """Pretrain a policy, unless the run folder already has one. Returns the path of its weights."""
    path = run_dir / POLICY
    if not path.is_file():
        started = time.monotonic()
        episodes = demonstrations(config, spaces, console, jobs)
        torch.manual_seed(config.run.seed)
        network = FactoredRecurrentActorCritic(spaces, config.policy)
        result = imitate(network, episodes, PASSES, gamma=config.learner.gamma, seed=config.run.seed)
        weights = to_weights(network, 0, 0, config.learner.state_stride)
        save_policy(Checkpoint(LearnerProgress(), (), weights, {}, None), path)
        console.print(
            f"imitated {len(episodes)} episodes in {time.monotonic() - started:.0f} s: held-out loss "
            f"{result.before:.2f} > {result.after:.2f} nats per step, same op in {result.agreement:.0%} of steps"
        )
        if result.skipped or result.clipped:
            console.print(
                f"warning: imitation skipped {result.skipped} steps with non-finite gradients and clipped "
                f"{result.clipped} extreme rewards and observations: check what the environment returns"
            )
    return path


def demonstrations(config: Config, spaces: Spaces, console: Console, jobs: int) -> list[Episode]:
    """Return the demonstrations of the teacher and those of `imitation.files`, in random order."""
    settings, taught = config.imitation, list[Episode]()
    if settings.episodes:
        console.print(f"pretraining: surveying {settings.hosts} hosts, then imitating {settings.episodes} episodes ...")
        taught = demonstrate(config, jobs)
    if not settings.files:
        return taught
    given, refused = read_demonstrations(config, spaces)
    for line in refused:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"pretraining: {len(given)} demonstrations from files")
    together = [*as_demonstrations(taught, config), *given]
    order = stream(config.run.seed, 1, Purpose.DEMONSTRATIONS).permutation(len(together))
    return [together[i] for i in order]
