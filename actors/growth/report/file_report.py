"""`FileReport`: reports a training run as a file that holds one episode."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.codec import decode_episode, encode_episode
from actors.config import require
from actors.errors import UserError
from actors.growth.report.run_report import Observed, RunReport
from actors.rollout.episode_files import SUFFIX, write_episode
from actors.rollout.recorder import Recorder
from actors.sessions.session import RULE_VERSION, RecordedStep
from actors.slots.objective import Prices
from actors.types.actions import ActionMasks
from actors.types.episode import REPORTED_TASK, SEED_TRAINING, EndReason, Episode, InvalidEpisode
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces

log = logging.getLogger(__name__)

DEFAULT_FOLDER = "tamiyo-episodes"
MAX_SEED = 2**63


class FileReport(RunReport):
    """Writes the episode into `folder` as soon as it ends. A checkpoint of the training run holds the steps so far, so
    that a resumed run writes the same bytes."""

    def __init__(self, folder: Path, spaces: Spaces, prices: Prices, seed: int) -> None:
        """Raise `UserError` if files cannot be written to `folder`."""
        super().__init__(prices)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot report to {folder} ({error.strerror}): give report= another folder") from error
        require(os.access(folder, os.W_OK), f"cannot report to {folder}: it is not writable; give another folder")
        self._folder, self._spaces, self._seed = folder, spaces, seed % MAX_SEED
        self._name = f"growth-{secrets.token_hex(8)}"
        self._recorder: Recorder | None = None
        self._last: FleetStep | None = None  # what the last step saw
        self._bootstrap = 0.0  # the value there

    @property
    def path(self) -> Path:
        """The file that is written at the end."""
        return self._folder / f"{self._name}{SUFFIX}"

    def record(self, seen: Observed, step: RecordedStep | None) -> None:
        if self.over:
            return
        if step is None:
            self.stop("the policy does not say what an episode records: it is of an older version, or your own")
            return
        if self._recorder is None:
            self._recorder, self._generation = Recorder(), step.generation
            before = step.before.row(0)
            self._recorder.begin(0, self._seed, REPORTED_TASK, before, step.generation, step.state_stride)
        if step.generation != self._generation:
            self.stop("the policy server was restarted with weights of another generation")
            return
        self._last = _one_row(self._spaces, seen.obs, seen.blueprint_indices, seen.masks.flat())
        self._recorder.record(0, self._last, step.decision, step.before, step.version)
        self._bootstrap = float(step.decision.bootstrap_values[0])

    def _position(self) -> dict[str, Any]:
        """Return all steps so far as an episode that was cut. The reward of the last step, which is not known, is 0."""
        if self._recorder is None or self._last is None:
            return {}
        return {"episode": encode_episode(self._episode(self._recorder, self._last))}

    def _continue(self, state: Mapping[str, Any]) -> None:
        data = state.get("episode")
        if not isinstance(data, bytes):
            self.stop("it was resumed from a checkpoint that was reported to an endpoint")
            return
        try:
            episode = decode_episode(data, max_bytes=len(data), spaces_hash=self._spaces.hash)
            require(
                len(episode) == len(self._standings),
                "the report in this state is damaged: its parts are of different lengths",
            )
        except InvalidEpisode as error:
            raise UserError(f"the report in this state is damaged ({error})") from error
        self._name = episode.episode_id.split("/")[1]
        self._last = _one_row(self._spaces, episode.final_obs, episode.final_blueprint_indices, episode.final_masks)
        self._bootstrap = episode.bootstrap_value
        self._recorder, self._generation = Recorder.resume(episode), episode.generation

    def _pay(self, reward: float) -> None:
        assert self._recorder is not None
        self._recorder.pay(0, reward)

    def _finish(self, final: Observed, telemetry: dict[str, float]) -> None:
        assert self._recorder is not None
        last = _one_row(self._spaces, final.obs, final.blueprint_indices, final.masks.flat())
        ended = last._replace(terminated=~last.terminated, end_reasons=(EndReason.HORIZON,), telemetry=(telemetry,))
        self._write(self._episode(self._recorder, ended))

    def _cut(self) -> str:
        recorder = self._recorder
        if recorder is None or recorder.steps[0] < 2:
            return "nothing is reported, as no decision before it has a known reward"
        if recorder.recorded("policy_version")[0] == RULE_VERSION and not recorder.recorded("values").any():
            return "nothing is reported, as a rule has no value estimate with which an unfinished run could be used"
        recorder.drop_last()
        assert self._last is not None
        episode = self._episode(recorder, self._last)
        self._write(episode)
        return f"{len(episode)} decisions before it are in {self.path}"

    def _episode(self, recorder: Recorder, final: FleetStep) -> Episode:
        episode = recorder.episode(0, final, self._bootstrap, SEED_TRAINING, self._spaces.hash)
        return replace(episode, episode_id=f"reported/{self._name}/0/0")

    def _write(self, episode: Episode) -> None:
        """Write the file. A failure does not end the training run."""
        try:
            write_episode(self.path, episode)
        except (OSError, InvalidEpisode) as error:
            log.warning("this run is not reported: %s cannot be written (%s)", self.path, error)
        else:
            log.info("this run is reported in %s", self.path)


def _one_row(
    spaces: Spaces, obs: NDArray[np.float32], blueprint_indices: NDArray[np.int64], union: NDArray[np.bool_]
) -> FleetStep:
    """Return an observation, not of an end, with masks in union form `[A]`."""
    ops, no = spaces.action.num_ops, np.zeros(1, dtype=np.bool_)
    masks = ActionMasks(union[None, :ops], None, union[None, ops:])
    obs, blueprint_indices = np.asarray(obs, np.float32)[None], np.asarray(blueprint_indices, np.int64)[None]
    return FleetStep(obs, blueprint_indices, masks, np.zeros(1, np.float32), no, no, (None,), ({},))
