"""`EndpointReport`: reports a training run to the endpoint that decides, which learns from its sessions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.growth.report.run_report import RunReport
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.episode import ClientEpisode
from actors.serving.client.recorded_step import RecordedStep
from actors.serving.client.session import Answer, PolicyError
from actors.serving.refusal import Reason
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces

log = logging.getLogger(__name__)
REPEATS = 3  # of the last step, within the time after which a server closes an idle session
MIN_PAUSE_S = 0.2


def training_session(client: PolicyClient, spaces: Spaces, seed: int) -> TrainingSession | None:
    """Open a session that the server learns from; None if it learns from none, or not from those of this token.

    Raises `PolicyError` for other reasons.
    """
    episode = client.episode(seed, spaces)
    try:
        episode.__enter__()
    except PolicyError as error:
        if error.reason in (Reason.NOT_TRAINING, Reason.NOT_PERMITTED):
            log.info("the run is reported to a file: %s", error)
            return None
        raise
    return TrainingSession(episode)


class TrainingSession:
    """A `PolicySession` whose steps the server learns from. While the model trains, the last step is repeated now and
    then, so that the server keeps the session; repeating a step changes nothing."""

    def __init__(self, episode: ClientEpisode) -> None:
        self.episode = episode
        self._closed = Event()
        self._thread = Thread(target=self._keep_alive, name="keep-session", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether the session was closed, after the end of its episode or before it."""
        return self._closed.is_set()

    @property
    def policy_version(self) -> int:
        return -1 if self.episode.answer is None else self.episode.answer.policy_version

    @property
    def exported(self) -> bytes:
        return b""  # a training session cannot be moved to another server

    def step(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        deterministic: bool = False,
    ) -> Answer:
        """See `PolicySession.step`. The server samples, whatever `deterministic` says."""
        self.episode.act(obs, masks, blueprint_indices)
        assert self.episode.answer is not None
        return self.episode.answer

    def reset(self, seed: int = 0) -> None:
        """Raise `RuntimeError`; a training session is one episode."""
        raise RuntimeError("a training session is one episode: open another one")

    def close(self) -> None:
        """Close the session. If its episode has not ended, the server cuts it before its last step."""
        if not self._closed.is_set():
            self._closed.set()
            self.episode.abandon()

    def _keep_alive(self) -> None:
        while not self._closed.wait(max(MIN_PAUSE_S, self.episode.timeout_s / REPEATS)):
            try:
                self.episode.keep_alive()
            except PolicyError as error:  # the next step reports it, if it lasts
                log.info("the session could not be kept: %s", error)


class EndpointReport(RunReport):
    """Sends each reward with the next decision, and the end at the horizon."""

    def __init__(self, session: TrainingSession, points_per_doubling: float, horizon_epochs: int) -> None:
        super().__init__(points_per_doubling, horizon_epochs)
        self.session = session

    def record(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        step: RecordedStep | None,
    ) -> None:
        """Do nothing; the server has recorded the step."""

    def _position(self) -> dict[str, Any]:
        session_id, steps = self.session.episode.position
        return {"session": session_id, "steps": steps} if steps else {}

    def _continue(self, state: Mapping[str, Any]) -> None:
        session_id, steps = state.get("session"), state.get("steps")
        if not (isinstance(session_id, str) and isinstance(steps, int)):
            self.stop("it was resumed from a checkpoint that was reported to a file")
            return
        self.session.episode.resume(session_id, steps)

    def _pay(self, reward: float) -> None:
        self.session.episode.reward(reward)

    def _finish(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        telemetry: dict[str, float],
    ) -> None:
        try:
            summary = self.session.episode.terminate()
            log.info("the endpoint has confirmed %d decisions of this run", summary.steps)
        except PolicyError as error:
            log.warning("the endpoint did not confirm the end of this run: %s", error)
        self.session.close()

    def _cut(self) -> str:
        _, steps = self.session.episode.position
        self.session.close()
        return "the endpoint keeps the decisions before it" if steps > 1 else "nothing is reported"
