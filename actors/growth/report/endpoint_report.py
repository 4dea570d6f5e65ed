"""`EndpointReport`: reports a training run to the endpoint that decides; `open_report` chooses it or a file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from actors.errors import UserError
from actors.growth.report.file_report import DEFAULT_FOLDER, FileReport
from actors.growth.report.run_report import Observed, RunReport
from actors.sessions.plain import Mask
from actors.sessions.refusal import Reason
from actors.sessions.session import Answer, PolicyError, RecordedStep, SessionOpener
from actors.slots.objective import Prices
from actors.types.spaces import Spaces

if TYPE_CHECKING:  # it imports gRPC
    from actors.serving.client.episode import ClientEpisode

log = logging.getLogger(__name__)
REPEATS = 3  # of the last step, within the time after which a server closes an idle session
MIN_PAUSE_S = 0.2


class EndpointReport(RunReport):
    """Sends each reward with the next decision, and the end at the horizon. It is also the session that decides. While
    the model trains, the last step is repeated now and then, so that the server keeps the session; repeating a step
    changes nothing."""

    exported = b""  # this session cannot be moved to another server

    def __init__(self, episode: ClientEpisode, prices: Prices) -> None:
        """Begin the episode. Raises `PolicyError`."""
        super().__init__(prices)
        self._episode = episode.__enter__()
        self.session = self
        self._closed = Event()
        Thread(target=self._keep_alive, name="keep-session", daemon=True).start()

    def step(
        self, obs: ArrayLike, blueprint_indices: ArrayLike = (), masks: Mask = None, deterministic: bool = False
    ) -> Answer:
        """See `PolicySession.step`. The server samples, whatever `deterministic` says."""
        self._episode.act(obs, masks, blueprint_indices)
        assert self._episode.answer is not None
        return self._episode.answer

    def close(self) -> None:
        """Close the session. If its episode has not ended, the server cuts it before its last step."""
        if not self._closed.is_set():
            self._closed.set()
            self._episode.abandon()

    def record(self, seen: Observed, step: RecordedStep | None) -> None:
        """Do nothing; the server has recorded the step."""

    def _keep_alive(self) -> None:
        while not self._closed.wait(max(MIN_PAUSE_S, self._episode.timeout_s / REPEATS)):
            try:
                self._episode.keep_alive()
            except PolicyError as error:  # the next step reports it, if it lasts
                log.info("the session could not be kept: %s", error)

    def _position(self) -> dict[str, Any]:
        session_id, steps = self._episode.position
        return {"session": session_id, "steps": steps} if steps else {}

    def _continue(self, state: Mapping[str, Any]) -> None:
        session_id, steps = state.get("session"), state.get("steps")
        if not (isinstance(session_id, str) and isinstance(steps, int)):
            self.stop("it was resumed from a checkpoint that was reported to a file")
            return
        self._episode.resume(session_id, steps)

    def _pay(self, reward: float) -> None:
        self._episode.reward(reward)

    def _finish(self, final: Observed, telemetry: dict[str, float]) -> None:
        try:
            summary = self._episode.terminate()
            log.info("the endpoint has confirmed %d decisions of this run", summary.steps)
        except PolicyError as error:
            log.warning("the endpoint did not confirm the end of this run: %s", error)
        self.close()

    def _cut(self) -> str:
        _, steps = self._episode.position
        self.close()
        return "the endpoint keeps the decisions before it" if steps > 1 else "nothing is reported"


def open_report(
    report: bool | str | Path, opener: SessionOpener, spaces: Spaces, prices: Prices, seed: int
) -> RunReport:
    """Return a report to the endpoint that decides if `report` is True and the endpoint learns from sessions, and else
    a report to a file. Raises `UserError`."""
    episode = getattr(opener, "episode", None)
    if report is True and episode is not None:
        try:
            return EndpointReport(episode(seed, spaces), prices)
        except PolicyError as error:
            if error.reason == Reason.SPACES_MISMATCH:
                raise UserError(f"this endpoint cannot learn from this model: {error}") from error
            learns_from_none = error.reason in (Reason.NOT_TRAINING, Reason.NOT_PERMITTED)
            level = logging.INFO if learns_from_none else logging.WARNING
            log.log(level, "the run is reported to a file, as the endpoint did not open a session: %s", error)
    folder = Path(DEFAULT_FOLDER) if isinstance(report, bool) else Path(report)
    return FileReport(folder, spaces, prices, seed)
