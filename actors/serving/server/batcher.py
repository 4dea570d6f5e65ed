"""Steps of many sessions as one forward pass.

A batch goes when all have come who may be expected, those whose last answer is `RECENT_S` old at most, or when it is
full, or `max_wait_s` after its first step: one session alone never waits. Where the loop is too busy with requests to
have read those that are there by then, it goes on reading for `BUSY_WAITS` times as long: a pass for many costs little
more than one for a few, and without it a server under load would only fall further behind. The pass runs in the loop's
own thread: on a CPU it takes one to a few milliseconds, and threads that take turns with it would only stretch both.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.policy.network import MaskTensors
from actors.policy.state import PolicyState
from actors.serving.messages import MessageLayout, StepQuery, stack
from actors.serving.noise import step_noise
from actors.serving.refusal import Refusal
from actors.serving.server.models import ServedModel
from actors.serving.server.sessions import Pending, Rows, Session
from actors.types.actions import ActionMasks

RECENT_S = 0.02
BUSY_WAITS = 8
BUSY = 0.4  # share of the wait that the loop's thread worked
LOOK_S = 0.0005


@dataclass(slots=True)
class Entry:
    """A step that waits for its batch."""

    session: Session
    query: StepQuery
    pending: Pending


class Decided(NamedTuple):
    """What became of N entries."""

    actions: list[list[int]]  # N x H
    log_probs: list[list[float]]  # N x H
    values: list[float]
    model: ServedModel


class Batcher:
    """Who was answered lately is who will soon ask again.

    `finish` is told every entry's outcome: its row of a `Decided`, or the refusal or error that it met.
    """

    def __init__(
        self,
        rows: Rows,
        newest: Callable[[], ServedModel],
        finish: Callable[[Entry, Decided | Exception, int], None],
        observe: Callable[[int, float], None],
        max_batch: int,
        max_wait_s: float,
    ) -> None:
        self._rows, self._newest, self._finish, self._observe = rows, newest, finish, observe
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
        self._waiting: list[Entry] = []
        self._timer: asyncio.Handle | None = None
        self._first_s = self._worked_s = 0.0  # when the first of them came, by the clock and by the thread's own
        self._answered: deque[tuple[float, Session]] = deque()
        self._expected = 0  # sessions answered within RECENT_S

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self._forget(time.monotonic())
        loop = asyncio.get_running_loop()
        if len(self._waiting) >= min(self._expected, self._max_batch):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_soon(self.flush)
        elif self._timer is None:
            self._first_s, self._worked_s = time.monotonic(), time.thread_time()
            self._timer = loop.call_later(self._max_wait_s, self._due)

    def _due(self) -> None:
        waited_s, worked_s = time.monotonic() - self._first_s, time.thread_time() - self._worked_s
        if worked_s > BUSY * waited_s and waited_s < BUSY_WAITS * self._max_wait_s:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._due)
        else:
            self.flush()

    def flush(self) -> None:
        """Decide now, for as many as fit."""
        self._timer = None
        batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_soon(self.flush)
        self._run(batch)
        now = time.monotonic()
        self._forget(now)
        for entry in batch:
            self._remember(entry.session, now)

    def _remember(self, session: Session, now: float) -> None:
        self._expected += session.answered_s <= now - RECENT_S
        session.answered_s = now
        self._answered.append((now, session))

    def _forget(self, now: float) -> None:
        while self._answered and self._answered[0][0] <= now - RECENT_S:
            when, session = self._answered.popleft()
            self._expected -= session.answered_s == when

    def _run(self, batch: Sequence[Entry]) -> None:
        """One pass for each kind of model and space in it; an entry that nobody waits for any more is let go."""
        groups: dict[tuple[int, int], tuple[ServedModel, MessageLayout, list[Entry]]] = {}
        newest = self._newest()
        for entry in batch:
            session = entry.session
            if entry.pending.abandoned():
                session.pending = None
                continue
            model = session.pinned or newest
            key = (id(model), id(session.layout))
            groups.setdefault(key, (model, session.layout, []))[2].append(entry)
        for model, layout, entries in groups.values():
            start = time.perf_counter()
            try:
                self._decide(model, layout, entries)
            except Exception as error:  # the step's own error, told to those who wait for it
                for entry in entries:
                    self._finish(entry, error, 0)
            self._observe(len(entries), time.perf_counter() - start)

    def _decide(self, model: ServedModel, layout: MessageLayout, entries: list[Entry]) -> None:
        stacked = stack([e.query for e in entries], layout)
        obs, blueprints, masks = stacked.obs, stacked.blueprint_indices, stacked.masks
        if any(stacked.refusals):
            sound = [i for i, refusal in enumerate(stacked.refusals) if refusal is None]
            for entry, refusal in zip(entries, stacked.refusals, strict=True):
                if isinstance(refusal, Refusal):
                    self._finish(entry, refusal, 0)
            if not sound:
                return
            entries = [entries[i] for i in sound]
            obs, blueprints = obs[sound], blueprints[sound]
            masks = ActionMasks(masks.op[sound], None if masks.slot is None else masks.slot[sound], masks.rest[sound])
        decided = self._forward(model, layout, entries, obs, blueprints, masks)
        for i, entry in enumerate(entries):
            self._finish(entry, decided, i)

    @torch.inference_mode()
    def _forward(
        self,
        model: ServedModel,
        layout: MessageLayout,
        entries: list[Entry],
        obs: NDArray[np.float32],
        blueprints: NDArray[np.int64],
        masks: ActionMasks,
    ) -> Decided:
        programs, state = model.programs(layout.spaces), self._rows.state
        device = state.h.device
        rows = torch.tensor([e.session.row for e in entries], device=device)
        inputs: list[Tensor] = [torch.from_numpy(a).to(device) for a in (obs, blueprints)]
        inputs += [*MaskTensors.of(masks, device), *state.rows(rows)]
        greedy = np.array([e.query.deterministic for e in entries])
        if greedy.all():
            out = programs.greedy(*inputs)
        else:
            heads = len(layout.spaces.action.heads)
            noise = np.full((len(entries), heads), 0.5)
            for i in map(int, np.flatnonzero(~greedy)):
                noise[i] = step_noise(entries[i].session.seed, entries[i].pending.step_index, heads)
            drawn = (torch.from_numpy(a).to(device) for a in (noise, greedy))
            out = programs.sampling(*inputs, *drawn)
        for own, after in zip(state, PolicyState(*out[4:]), strict=True):
            own.index_copy_(1, rows, after)
        actions, log_probs, values = (t.tolist() for t in out[:3])
        return Decided(actions, log_probs, values, model)
