"""`LoadedPolicy`: a trained policy for one's own program, which keeps its recurrent state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from actors.config import GymConfig
from actors.errors import UserError
from actors.gym.make import gym_converter, make_single_env
from actors.gym.unified import UnifiedEnv
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.saved import find_policy
from actors.sessions.local import LocalSession
from actors.sessions.plain import Mask, as_obs, env_action
from actors.sessions.session import UNKNOWN_VERSION, Answer
from deploy.config.schema import Config
from deploy.config.yaml import from_yaml
from learner.run.checkpoint import load_network


class LoadedPolicy:
    """A trained policy that plays one episode at a time.

        policy = tamiyo.load_policy("runs/NAME")
        env = policy.make_env()
        (obs, info), done = env.reset(), False
        policy.reset()  # at the start of each episode
        while not done:
            action = policy.act(obs, info.get("action_mask"))
            obs, reward, terminated, truncated, info = env.step(action)
            done = terminated or truncated

    Attributes:
        network: The network, a `torch.nn.Module`, such as for `tamiyo.LocalPolicy`.
        spaces: Its spaces.
        env_id: Id of the Gymnasium environment that it was trained in; empty if that is unknown.
        answer: The last decision: choices, log-probabilities and value.
    """

    def __init__(self, network: FactoredRecurrentActorCritic, gym: GymConfig | None = None) -> None:
        """`gym` names the environment that it was trained in. Raises `UserError` if that cannot be made."""
        self.network, self.spaces, self._gym = network, network.spaces, gym
        self.env_id = gym.id if gym is not None else ""
        self.answer: Answer | None = None
        self._converter = gym_converter(gym) if gym is not None else None
        self._session = LocalSession(network, UNKNOWN_VERSION, 0)

    def make_env(self, **arguments: Any) -> UnifiedEnv:
        """Make the Gymnasium environment that it was trained in, with its arguments and wrappers; `arguments`, such as
        `render_mode`, are added. Masks are in `info["action_mask"]`. Raises `UserError`."""
        if self._gym is None:
            raise UserError("this policy is not in the folder of a run in a Gymnasium environment: make yours yourself")
        return make_single_env(self._gym, **arguments)

    def reset(self, seed: int = 0) -> None:
        """Begin an episode: forget what the last one has left in the recurrent state. `seed` is that of samples."""
        self._session.reset(seed)

    def act(self, obs: Any, mask: Mask = None, blueprint_indices: ArrayLike = (), deterministic: bool = True) -> Any:
        """Return the next action, in the form of the environment's action space.

        Args:
            obs: The observation as the environment gives it, or `[D]`, flat and not normalized.
            mask: Legal choices, all heads concatenated, or `tamiyo.ActionMasks`; None if everything is legal.
            blueprint_indices: `[S]`, only in spaces with slots.
            deterministic: Take the most likely choices (with slots, median decisions) instead of samples.
        """
        converter = self._converter
        if converter is None:
            flat = as_obs(self.spaces.obs_size, obs)
        else:
            flat = converter.flat_obs(obs)
            mask = None if mask is None else converter.flat_mask(mask)
        blueprints = np.asarray(blueprint_indices, dtype=np.int64).reshape(-1)
        self.answer = answer = self._session.step(flat, blueprints, mask, deterministic)
        return env_action(self.spaces.action, answer) if converter is None else converter.env_action(answer.action)


def load_policy(path: str | Path, slots: int | None = None, latest: bool = False) -> LoadedPolicy:
    """Load the policy of a run folder, of a checkpoint file, or `trained`, the one in the package.

    Of a run folder, it is the policy that was best in the run's evaluations; with `latest`, or if the run has evaluated
    none, that of the newest checkpoint.

    In the folder of a run in a Gymnasium environment, it takes that environment's observations and returns its actions.
    A checkpoint elsewhere takes flat observations. `slots` changes the number of slots from that of the training.
    Raises `UserError`.
    """
    config = run_config(Path(path))
    gym = config.gym if config is not None and config.gym.id else None
    return LoadedPolicy(load_network(find_policy(Path(path), latest), slots), gym)


def run_config(path: Path) -> Config | None:
    """Return the settings of the run whose folder or checkpoint this is; None for a checkpoint outside of a run."""
    for folder in (path, path.parent, path.parent.parent):
        if (folder / "config.yaml").is_file():
            return from_yaml(folder / "config.yaml")
    return None
