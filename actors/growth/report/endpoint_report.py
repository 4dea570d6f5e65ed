"""`EndpointReport`: reports a training run to the endpoint that decides; `open_report` chooses it or a file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.errors import UserError
from actors.growth.report.file_report import DEFAULT_FOLDER, FileReport
from actors.growth.report.run_report import Observed, RunReport
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError, RecordedStep, SessionOpener, TrainingOpener
from actors.slots.objective import Prices
from actors.types.spaces import Spaces

if TYPE_CHECKING:  # it imports gRPC
    from actors.serving.client.training_session import TrainingSession

log = logging.getLogger(__name__)


class EndpointReport(RunReport):
    """Sends each reward with the next decision, and the end at the horizon."""

    def __init__(self, session: TrainingSession, prices: Prices, horizon_epochs: int) -> None:
        super().__init__(prices, horizon_epochs)
        self.session = self._training = session

    def record(self, seen: Observed, step: RecordedStep | None) -> None:
        """Do nothing; the server has recorded the step."""

    def _position(self) -> dict[str, Any]:
        session_id, steps = self._training.position
        return {"session": session_id, "steps": steps} if steps else {}

    def _continue(self, state: Mapping[str, Any]) -> None:
        session_id, steps = state.get("session"), state.get("steps")
        if not (isinstance(session_id, str) and isinstance(steps, int)):
            self.stop("it was resumed from a checkpoint that was reported to a file")
            return
        self._training.resume(session_id, steps)

    def _pay(self, reward: float) -> None:
        self._training.reward(reward)

    def _finish(self, final: Observed, telemetry: dict[str, float]) -> None:
        try:
            summary = self._training.terminate()
            log.info("the endpoint has confirmed %d decisions of this run", summary.steps)
        except PolicyError as error:
            log.warning("the endpoint did not confirm the end of this run: %s", error)
        self._training.close()

    def _cut(self) -> str:
        _, steps = self._training.position
        self._training.close()
        return "the endpoint keeps the decisions before it" if steps > 1 else "nothing is reported"


def open_report(
    report: bool | str | Path,
    opener: SessionOpener,
    spaces: Spaces,
    prices: Prices,
    horizon_epochs: int,
    seed: int,
) -> RunReport:
    """Return a report to the endpoint that decides if `report` is True and the endpoint learns from sessions, and else
    a report to a file. Raises `UserError`."""
    if report is True and isinstance(opener, TrainingOpener):
        try:
            return EndpointReport(opener.open_training(spaces, seed), prices, horizon_epochs)
        except PolicyError as error:
            if error.reason == Reason.SPACES_MISMATCH:
                raise UserError(f"this endpoint cannot learn from this model: {error}") from error
            learns_from_none = error.reason in (Reason.NOT_TRAINING, Reason.NOT_PERMITTED)
            level = logging.INFO if learns_from_none else logging.WARNING
            log.log(level, "the run is reported to a file, as the endpoint did not open a session: %s", error)
    folder = Path(DEFAULT_FOLDER) if isinstance(report, bool) else Path(report)
    return FileReport(folder, spaces, prices, horizon_epochs, seed)
