"""`EndpointReport`: reports a training run to the endpoint that decides, which learns from its sessions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from actors.growth.report.run_report import Observed, RunReport
from actors.sessions.session import PolicyError, RecordedStep
from actors.slots.objective import Prices

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
