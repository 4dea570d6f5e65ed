"""`tamiyo episodes`: write episodes of a run to files, and put files into the queue of a run that learns from them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from actors.codec import InvalidWeights, encode_episode
from actors.errors import UserError
from actors.policy.publish import config_of, spaces_of
from actors.policy.state import StateSizes
from actors.rollout.episode_files import SUFFIX, find_episodes, read_episode, write_bytes
from actors.transport.base import BUSY_RETRY_S, EpisodeHeader, PutReply, PutStatus
from actors.transport.redis import Transport, connect
from actors.types.episode import Episode, InvalidEpisode
from deploy.commands.admin.status import find_run
from learner.schema import EpisodeSchema

PRODUCER = "imported"
"""Actor of imported episodes in the ledger; each import is an incarnation."""


def export_episodes(url: str, run: str | None, out: Path, most: int, dead_letters: bool) -> int:
    """Write the oldest episodes that wait in a run's queue, or its dead letters, to files; the run keeps them.

    Returns the exit status, 0. Raises `UserError` if there are none.
    """
    name = find_run(url, run)
    with closing(connect(url, namespace=name)) as transport:
        found = [(d.header, d.payload) for d in (transport.dead_letters() if dead_letters else transport.waiting(most))]
    kept = [(header, payload) for header, payload in found[:most] if payload]
    if not kept:
        raise UserError(
            f"run {name!r} has no {'dead letters with a payload' if dead_letters else 'episodes waiting'} now"
            + ("" if dead_letters else ": its learner takes them as they come; try again, or add --dead-letters")
        )
    out.mkdir(parents=True, exist_ok=True)
    for header, payload in kept:
        write_bytes(out / f"{header.episode_id.replace('/', '-')}{SUFFIX}", payload)
    print(f"{out}: {len(kept)} episodes of run {name!r}")
    return 0


def import_episodes(url: str, run: str | None, paths: Sequence[Path], wait_s: float) -> int:
    """Put episode files into the queue of a run, each once, and print what became of each.

    Waits up to `wait_s` in all for a full queue. Returns the exit status: 1 if a file was refused, else 0. Raises
    `UserError` if the run has no weights yet, or if a file does not exist.
    """
    files = find_episodes(paths)
    name = find_run(url, run)
    with closing(connect(url, namespace=name)) as transport:
        importer = EpisodeImport(transport, name, wait_s)
        refusals = [importer.put(path) for path in files]
    for path, refusal in zip(files, refusals, strict=True):
        print(f"{path}: {f'refused: {refusal}' if refusal else 'accepted'}")
    return 1 if any(refusals) else 0


class EpisodeImport:
    """Puts episodes of files into the queue of a run, as a producer of its own."""

    def __init__(self, transport: Transport, run: str, wait_s: float) -> None:
        """Raise `UserError` if the run has no weights yet."""
        self._transport, self._run, self._deadline_s = transport, run, time.monotonic() + wait_s
        try:
            weights = transport.fetch()
        except InvalidWeights as error:
            raise UserError(
                f"the weights of the run cannot be read ({error}): give the --redis that holds them"
            ) from error
        if weights is None:
            raise UserError("the run has published no weights yet: import once its learner runs")
        sizes = StateSizes.from_config(config_of(weights))
        self._schema = EpisodeSchema(spaces_of(weights), sizes, weights.state_stride)
        self._max_lag = transport.health().learner.get("max_policy_lag")  # unknown before the first update
        self._incarnation: int | None = None
        self._sequence = 0

    def put(self, path: Path) -> str:
        """Put the episode of one file. Returns why it was refused, or ""."""
        try:
            episode = read_episode(path)
            if refusal := self._refusal(episode):
                return refusal
        except InvalidEpisode as error:
            return str(error)
        if self._incarnation is None:
            self._incarnation = self._transport.new_incarnation(PRODUCER).number
        name = f"{self._run}/{PRODUCER}/{self._incarnation}/{self._sequence}"
        renamed = replace(episode, episode_id=name)
        match self._put(episode.episode_id, EpisodeHeader.from_episode(renamed), encode_episode(renamed)).status:
            case PutStatus.OK:
                self._sequence += 1
                return ""
            case PutStatus.DUPLICATE:
                return f"duplicate: the episode {episode.episode_id} was imported before"
            case PutStatus.FENCED:
                return "its weights were rolled back"
            case PutStatus.BUSY:
                return "the queue is full: import it again later"

    def _refusal(self, episode: Episode) -> str:
        """Return why this run cannot learn from an episode, or "". Raises `InvalidEpisode` if it does not fit."""
        oldest, newest = episode.oldest_version, int(episode.policy_version.max())
        if oldest < 0:
            return "no weights of a run acted it, but a rule or an unknown policy: use imitation.files instead"
        self._schema.check(episode)
        if self._is_own(EpisodeHeader.from_episode(episode)):
            return f"duplicate: {episode.episode_id} is an episode of this run, which has accepted it"
        generation, head = self._transport.current_generation(), self._transport.head()
        if episode.generation > generation:
            return f"it is of generation {episode.generation}, but the run is in generation {generation}"
        if newest > head:
            return f"weights {newest} acted it, but the newest of the run are {head}: it is of another run"
        if self._max_lag is not None and head - oldest > self._max_lag:
            return (
                f"weights {oldest} acted it, and the newest are {head}: more than the {self._max_lag:.0f} versions of "
                "learner.max_policy_lag; use imitation.files instead"
            )
        return ""

    def _is_own(self, header: EpisodeHeader) -> bool:
        """Return whether the queue of this run has accepted this episode from its producer, before it was exported."""
        if header.episode_id.partition("/")[0] != self._run:
            return False
        rows = self._transport.ledger().actors
        row = rows.get((header.actor, header.incarnation))
        if row is not None:
            return header.sequence < row.next_sequence
        return any(actor == header.actor and header.incarnation < number for actor, number in rows)  # a retired one

    def _put(self, original_id: str, header: EpisodeHeader, payload: bytes) -> PutReply:
        while True:
            reply = self._transport.import_episode(original_id, header, payload)
            if reply.status is not PutStatus.BUSY or time.monotonic() + BUSY_RETRY_S > self._deadline_s:
                return reply
            time.sleep(BUSY_RETRY_S)
