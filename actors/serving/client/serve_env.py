"""`serve_env`: play a Gymnasium environment at a remote endpoint, which learns from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium

from actors.errors import UserError
from actors.gym.spaces import GymSpaces
from actors.gym.unified import UnifiedEnv
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.episode import ClientEpisode, EpisodeSummary
from actors.sessions.session import SessionLost
from actors.types.spaces import Spaces


@dataclass
class Played:
    """What `serve_env` has played."""

    episodes: list[EpisodeSummary] = field(default_factory=list)  # that the server has confirmed
    lost: int = 0  # episodes that the server lost, because it was restarted


def serve_env(
    env: gymnasium.Env[Any, Any],
    address: str,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    deadline_s: float = 300.0,
    squash: bool = False,
    **connection: Any,
) -> Played:
    """Play episodes of `env` at the endpoint of a run (`tamiyo train --env external`), which learns from them.

    Episodes that a restarted server has lost are played again. Raises `UserError` if the spaces differ from those of
    the run, and `PolicyError` if the endpoint refuses, or does not answer for `deadline_s`.

    Args:
        env: An environment whose actions are Discrete, MultiDiscrete, Box of floats, or a Dict or Tuple of these, with
            or without action masks.
        address: host:port of the endpoint.
        episodes: Number of episodes; None plays until the endpoint ends.
        seed: Seed of the first reset; None draws one.
        deadline_s: Seconds to wait for an endpoint that is away, or whose learner is behind.
        squash: Whether the spaces of the run squash continuous actions (`gym.squash`).
        connection: Further arguments of `PolicyClient`, such as `token` and `root_certificates`.
    """
    name = env.spec.id if env.spec is not None else type(env).__name__
    unified = UnifiedEnv(env, name)
    converter = GymSpaces(name, unified.observation_space, unified.action_space, squash)
    played = Played()
    with PolicyClient(address, deadline_s=deadline_s, **connection) as client:
        wanted = Spaces.from_json(client.model().spaces_json)
        if wanted.hash != converter.spaces.hash:
            raise UserError(
                f"{name} has {converter.spaces.obs_size} features and actions {list(converter.spaces.action.sizes)}, "
                f"but the run {wanted.obs_size} and {list(wanted.action.sizes)}: give the run the spaces of {name}"
            )
        while episodes is None or len(played.episodes) < episodes:
            try:
                with client.episode(spaces=converter.spaces) as episode:
                    _play(unified, converter, episode, seed)
            except SessionLost:
                played.lost += 1
                continue
            finally:
                seed = None
            assert episode.summary is not None
            played.episodes.append(episode.summary)
    return played


def _play(env: UnifiedEnv, converter: GymSpaces, episode: ClientEpisode, seed: int | None) -> None:
    """Play one episode, and end it if it was truncated."""
    obs, info = env.reset(seed=seed)
    terminated = truncated = False
    while not (terminated or truncated):
        episode.act(converter.flat_obs(obs), info.get("action_mask"))
        assert episode.answer is not None
        obs, reward, terminated, truncated, info = env.step(converter.env_action(episode.answer.action))
        episode.reward(reward)
    if not terminated:
        episode.truncate(converter.flat_obs(obs), info.get("action_mask"))
