"""`ClientEpisode`: an episode of the user's own environment, played at an endpoint that learns from it.

`AsyncClientEpisode` is its twin for asyncio. Both run the coroutines of `EpisodeProtocol`.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actors.serving.client.connection import Connection, at_once
from actors.serving.client.session_protocol import SessionProtocol
from actors.serving.messages import end_request
from actors.sessions.plain import Mask, as_masks, env_action
from actors.sessions.refusal import Code, Reason
from actors.sessions.session import Answer, PolicyError
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces


class EpisodeSummary(NamedTuple):
    """What the server says at the end of an episode."""

    episode_return: float
    steps: int
    policy_lag: int  # versions between the oldest weights of the last segment and the newest
    account: dict[str, int | str]  # totals of this token, as in `tamiyo status`


class EpisodeProtocol:
    """The client's side of an episode, as coroutines."""

    def __init__(self, client: Connection, seed: int | None, spaces: Spaces | None) -> None:
        self._client, self._wanted = client, spaces
        self._seed = secrets.randbits(63) if seed is None else seed
        self._protocol: SessionProtocol
        self._reward: float | None = None  # of the last action
        self.answer: Answer | None = None  # to the last `act`
        self.summary: EpisodeSummary | None = None  # once the episode has ended

    @property
    def spaces(self) -> Spaces:
        """Spaces of the environment."""
        return self._protocol.spaces

    def reward(self, reward: float) -> None:
        """Say what the last action brought; sent with the next call."""
        if self.answer is None or self._reward is not None:
            raise self._misuse("call reward() once after each act()")
        self._reward = float(reward)

    @property
    def timeout_s(self) -> float:
        """Seconds without a call after which the server counts this client as disappeared; see `keep_alive`."""
        return self._protocol.session_ttl_s

    async def _opening(self) -> None:
        """Open the session, in the spaces of the server unless others are wanted."""
        spaces = await self._client.known_spaces(self._wanted)
        self._protocol = SessionProtocol(self._client, spaces, self._seed, train=True)
        await self._protocol.opening()

    async def _acting(self, obs: ArrayLike, mask: Mask = None, blueprint_indices: ArrayLike = ()) -> int | NDArray[Any]:
        if (self._reward is None) != (self.answer is None):
            raise self._misuse("call reward() once after each act()")
        arrays = self._arrays(obs, mask, blueprint_indices)
        self.answer = await self._protocol.stepping(*arrays, False, self._reward)
        self._reward = None
        return env_action(self.spaces.action, self.answer)

    async def _ending(
        self, obs: ArrayLike | None = None, mask: Mask = None, blueprint_indices: ArrayLike = ()
    ) -> EpisodeSummary:
        """End the episode at a time limit, or without `obs` as terminated."""
        if self._reward is None:
            raise self._misuse("call reward() after the last act() of an episode")
        final = (None, None, None) if obs is None else self._arrays(obs, mask, blueprint_indices)
        response = await self._protocol.ending(end_request(self._reward, *final))
        account = {field.name: getattr(response.account, field.name) for field in response.account.DESCRIPTOR.fields}
        self.summary = EpisodeSummary(response.episode_return, response.steps, response.policy_lag, account)
        return self.summary

    async def _leaving(self, failed: bool) -> None:
        """End the episode if it has not ended, unless the user's code has failed, and close the session."""
        try:
            if not failed and self.summary is None and self._protocol.next_index > 0:
                await self._ending()
        finally:
            await self._protocol.closing()

    def _arrays(
        self, obs: ArrayLike, mask: Mask, blueprint_indices: ArrayLike
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], ActionMasks]:
        flat = np.asarray(obs, dtype=np.float32).reshape(-1)
        blueprints = np.asarray(blueprint_indices, dtype=np.int64).reshape(-1)
        return flat, blueprints, as_masks(self.spaces.action, mask)

    @staticmethod
    def _misuse(message: str) -> PolicyError:
        return PolicyError(Code.INVALID_ARGUMENT, message, Reason.REWARD_INVALID)


class ClientEpisode(EpisodeProtocol):
    """One episode that the server learns from.

        with client.episode(seed) as episode:
            while not done:
                action = episode.act(obs, mask)
                obs, reward, done = env.step(action)
                episode.reward(reward)

    Leaving the block ends the episode as terminated, unless `truncate` was called. If an exception leaves the block,
    the episode counts as one whose client disappeared. While the learner is behind, calls wait, for the client's
    `deadline_s` at most. Raises `PolicyError`, and `SessionLost` if the server has lost the episode: begin another one.
    """

    def __enter__(self) -> ClientEpisode:
        at_once(self._opening())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        at_once(self._leaving(kind is not None))

    def act(self, obs: ArrayLike, mask: Mask = None, blueprint_indices: ArrayLike = ()) -> int | NDArray[Any]:
        """Return the next action: an int, or `[H]` with several heads.

        With continuous heads it is float64: the choices of the other heads, if there are any, then one value per
        continuous head, within its bounds.

        Args:
            obs: `[D]` observation, not normalized.
            mask: `[A]` legal choices, all heads concatenated, or `ActionMasks`; None if everything is legal. Continuous
                heads have no entries, or one each, which is true.
            blueprint_indices: `[S]`, only in spaces with slots.
        """
        return at_once(self._acting(obs, mask, blueprint_indices))

    def keep_alive(self) -> None:
        """Repeat the last step, which changes nothing, so that the server keeps the session for another `timeout_s`."""
        request = self._protocol.last_request
        if request is not None and self.summary is None:
            at_once(self._client.call("Step", request))

    def truncate(self, obs: ArrayLike, mask: Mask = None, blueprint_indices: ArrayLike = ()) -> EpisodeSummary:
        """End the episode at a time limit; the value of what would have followed is estimated from `obs`."""
        return at_once(self._ending(obs, mask, blueprint_indices))


class AsyncClientEpisode(EpisodeProtocol):
    """`ClientEpisode` for asyncio.

    async with client.episode(seed) as episode:
        while not done:
            action = await episode.act(obs, mask)
            obs, reward, done = await step(action)
            episode.reward(reward)
    """

    async def __aenter__(self) -> AsyncClientEpisode:
        await self._opening()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._leaving(kind is not None)

    act, truncate = EpisodeProtocol._acting, EpisodeProtocol._ending
