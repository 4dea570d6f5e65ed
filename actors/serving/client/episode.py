"""`ClientEpisode`: an episode of the user's own environment, played at an endpoint that learns from it.

`AsyncClientEpisode` is its twin for asyncio. Both run the coroutines of `EpisodeProtocol`.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actors.serving.client.connection import Connection, at_once
from actors.serving.client.session_protocol import LOST_EPISODE, SessionProtocol
from actors.serving.messages import end_request
from actors.sessions.plain import Mask, as_masks, env_action
from actors.sessions.refusal import Code, Reason
from actors.sessions.session import Answer, PolicyError, SessionLost
from actors.types.spaces import Spaces


class EpisodeSummary(NamedTuple):
    """What the server says at the end of an episode."""

    episode_return: float
    steps: int
    policy_lag: int  # versions between the oldest weights of the last segment and the newest
    account: dict[str, int | str]  # totals of this token, as in `tamiyo status`


class EpisodeProtocol(SessionProtocol):
    """The client's side of an episode, as coroutines: a session that the server learns from."""

    train = True

    def __init__(self, client: Connection, seed: int | None, spaces: Spaces | None) -> None:
        super().__init__(client, spaces, secrets.randbits(63) if seed is None else seed)
        self._reward: float | None = None  # of the last action
        self.answer: Answer | None = None  # to the last `act`
        self.summary: EpisodeSummary | None = None  # once the episode has ended

    def reward(self, reward: float) -> None:
        """Say what the last action brought; sent with the next call."""
        if self.answer is None or self._reward is not None:
            raise self._misuse("call reward() once after each act()")
        self._reward = float(reward)

    @property
    def timeout_s(self) -> float:
        """Seconds without a call after which the server counts this client as disappeared; see `keep_alive`."""
        return self.session_ttl_s

    async def _acting(self, obs: ArrayLike, mask: Mask = None, blueprint_indices: ArrayLike = ()) -> int | NDArray[Any]:
        if (self._reward is None) != (self.answer is None):
            raise self._misuse("call reward() once after each act()")
        flat, blueprints = np.ravel(obs), np.ravel(blueprint_indices)
        self.answer = await self.stepping(flat, blueprints, mask, False, self._reward)
        self._reward = None
        return env_action(self.spaces.action, self.answer)

    async def _ending(
        self, obs: ArrayLike | None = None, mask: Mask = None, blueprint_indices: ArrayLike = ()
    ) -> EpisodeSummary:
        """End the episode at a time limit, or without `obs` as terminated."""
        if self._reward is None:
            raise self._misuse("call reward() after the last act() of an episode")
        request = end_request(self._reward)
        if obs is not None:
            masks = as_masks(self.spaces.action, mask)
            request = end_request(self._reward, np.ravel(obs), np.ravel(blueprint_indices), masks)
        request.session_id, request.step_index = self.session_id, self.next_index
        try:
            response = await self._client.call("EndEpisode", request)
        except PolicyError as error:
            if error.import_required:
                raise SessionLost(LOST_EPISODE) from error
            raise
        account = {field.name: getattr(response.account, field.name) for field in response.account.DESCRIPTOR.fields}
        self.summary = EpisodeSummary(response.episode_return, response.steps, response.policy_lag, account)
        return self.summary

    async def _leaving(self, failed: bool) -> None:
        """End the episode if it has not ended, unless the user's code has failed, and close the session."""
        try:
            if not failed and self.summary is None and self.next_index > 0:
                await self._ending()
        finally:
            await self.closing()

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
        at_once(self.opening())
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
        if self.last_request is not None and self.summary is None:
            at_once(self._client.call("Step", self.last_request))

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
        await self.opening()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._leaving(kind is not None)

    act, truncate = EpisodeProtocol._acting, EpisodeProtocol._ending
