"""`TrainingSession`: a `PolicySession` whose steps the server learns from."""

from __future__ import annotations

import logging
from threading import Event, Thread

from numpy.typing import ArrayLike

from actors.serving.client.connection import Connection, at_once
from actors.serving.client.episode import ClientEpisode
from actors.sessions.plain import Mask
from actors.sessions.session import Answer, PolicyError
from actors.types.spaces import Spaces

log = logging.getLogger(__name__)
REPEATS = 3  # of the last step, within the time after which a server closes an idle session
MIN_PAUSE_S = 0.2


class TrainingSession(ClientEpisode):
    """A `PolicySession` whose steps the server learns from, as one episode. While the model trains, the last step is
    repeated now and then, so that the server keeps the session; repeating a step changes nothing."""

    exported = b""  # a training session cannot be moved to another server

    def __init__(self, client: Connection, seed: int, spaces: Spaces) -> None:
        """Open the session. Raises `PolicyError`."""
        super().__init__(client, seed, spaces)
        at_once(self._opening())
        self._closed = Event()
        Thread(target=self._keep_alive, name="keep-session", daemon=True).start()

    @property
    def policy_version(self) -> int:
        return -1 if self.answer is None else self.answer.policy_version

    def step(
        self,
        obs: ArrayLike,
        blueprint_indices: ArrayLike = (),
        masks: Mask = None,
        deterministic: bool = False,
    ) -> Answer:
        """See `PolicySession.step`. The server samples, whatever `deterministic` says."""
        self.act(obs, masks, blueprint_indices)
        assert self.answer is not None
        return self.answer

    def reset(self, seed: int = 0) -> None:
        """Raise `RuntimeError`; a training session is one episode."""
        raise RuntimeError("a training session is one episode: open another one")

    def close(self) -> None:
        """Close the session. If its episode has not ended, the server cuts it before its last step."""
        if not self._closed.is_set():
            self._closed.set()
            self.abandon()

    def _keep_alive(self) -> None:
        while not self._closed.wait(max(MIN_PAUSE_S, self.timeout_s / REPEATS)):
            try:
                self.keep_alive()
            except PolicyError as error:  # the next step reports it, if it lasts
                log.info("the session could not be kept: %s", error)
