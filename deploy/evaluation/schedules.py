"""Schedules: rule-based policies that use the same interface and observations as the trained policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import require
from actors.env.slots.observation import BASE, BLIND_EPOCHS, SLOT, BaseFeature, SlotFeature
from actors.env.slots.stage import Stage
from actors.policy.baselines import rule_output
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState, StateSizes
from actors.types.actions import ActionMasks, Op
from actors.types.spaces import Spaces

Kind = Literal["periodic", "plateau", "gradient"]
KINDS: tuple[Kind, ...] = ("periodic", "plateau", "gradient")
INSTANT = 0
"""Index of the alpha speed that acts at once."""


@dataclass(frozen=True)
class Schedule:
    """A rule for germinating seeds; after that, all kinds treat a seed in the same way.

    `periodic` germinates every `wait` epochs from `start` on. `plateau` germinates if the validation loss has not
    decreased by the fraction `threshold` for `wait` epochs. `gradient` germinates like `periodic`, but blends a seed
    only if its gradient norm after its epochs in TRAINING is at least `threshold`, and prunes it otherwise.
    """

    kind: Kind
    start: int
    """First epoch in which it may germinate."""
    wait: int
    """Epochs between germinations, or the patience of `plateau`."""
    seeds: int
    """Largest number of seeds; 0 never grows."""
    blueprint: int
    blend: int
    alpha_target: int
    alpha_speed: int
    """Indices of the heads' choices."""
    training: int
    """Epochs in TRAINING before the seed is blended in."""
    keep_above: float | None = None
    """Points that a seed must contribute to be fossilized; otherwise it is pruned. None keeps all seeds."""
    threshold: float = 0.0

    def __post_init__(self) -> None:
        require(self.wait >= 1, f"a schedule waits {self.wait} epochs: it must be at least 1")
        require(self.training >= 1, f"a schedule trains for {self.training} epochs: it must be at least 1")


NEVER = Schedule("periodic", 0, 1, 0, 1, 0, 2, 0, 1)


def draw_schedule(kind: Kind, rng: np.random.Generator, slots: int, horizon: int, blueprints: int) -> Schedule:
    """One configuration of the space that is tuned."""
    thresholds = {"periodic": [0.0], "plateau": [0.0, 0.002, 0.01, 0.03, 0.1], "gradient": [0.0, 0.02, 0.05, 0.1, 0.3]}
    kept = [None, None, 0.0, 0.5, 1.0, 2.0, 4.0]
    return Schedule(
        kind=kind,
        start=int(rng.integers(0, max(1, horizon // 2))),
        wait=int(rng.integers(1, max(2, horizon // 3))),
        seeds=int(rng.integers(1, slots + 1)),
        blueprint=int(rng.integers(1, blueprints)),
        blend=int(rng.integers(3)),
        alpha_target=int(rng.choice([1, 2, 2])),
        alpha_speed=int(rng.integers(4)),
        training=int(rng.integers(1, 5)),
        keep_above=kept[int(rng.integers(len(kept)))],
        threshold=float(rng.choice(thresholds[kind])),
    )


class ObservationReader:
    """Reads features of the flat observation by name."""

    def __init__(self, spaces: Spaces) -> None:
        self._base, self._slot = _columns(BASE), _columns(SLOT)
        self._spaces = spaces

    def base(self, obs: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """`[N, size]`."""
        return obs[:, self._base[name]]

    def slot(self, obs: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """`[N, S, size]`."""
        s = self._spaces
        return obs[:, s.base_size :].reshape(len(obs), s.slots, s.slot_size)[:, :, self._slot[name]]


def _columns(features: Sequence[BaseFeature | SlotFeature]) -> dict[str, slice]:
    columns, start = {}, 0
    for feature in features:
        columns[feature.name] = slice(start, start + feature.size)
        start += feature.size
    return columns


class HostView(NamedTuple):
    """The state of one environment that a rule can use."""

    row: int
    obs: NDArray[np.float32]  # [1, D]
    stages: NDArray[np.int64]  # [S]
    masks: ActionMasks  # of all rows
    noise: NDArray[np.float64]  # [H]

    def legal(self, op: Op, slot: int) -> bool:
        assert self.masks.slot is not None
        return bool(self.masks.slot[self.row, op, slot])

    def furthest_first(self) -> list[int]:
        order: list[int] = np.argsort(-self.stages, kind="stable").tolist()
        return order


class _Ruled(ABC):
    """Base of rule-based policies, whose state is three numbers per environment."""

    MEMORY = 3

    def __init__(self, spaces: Spaces) -> None:
        require(spaces.action.num_ops == len(Op), "schedules need env.profile tamiyo, whose ops they choose")
        self.spaces, self.reading = spaces, ObservationReader(spaces)

    def initial_state(self, batch: int) -> PolicyState:
        return PolicyState.zeros(StateSizes(h=(1, self.MEMORY)), batch)

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        memory = state.h[0].numpy().copy()
        actions = np.zeros((len(obs), len(self.spaces.action.heads)), dtype=np.int64)
        stages = self.reading.slot(obs, "stage").argmax(-1)
        for row in range(len(obs)):
            view = HostView(row, obs[row : row + 1], stages[row], masks, noise[row])
            actions[row] = self._choose(view, memory[row])
        return rule_output(self.spaces, actions, masks), state._replace(h=torch.from_numpy(memory)[None])

    @abstractmethod
    def _choose(self, view: HostView, memory: NDArray[np.float32]) -> list[int]:
        """Return the action `[H]` of one environment, and update `memory` in place."""


def _action(op: Op, slot: int = 0, blueprint: int = 0, blend: int = 0, target: int = 0, speed: int = 0) -> list[int]:
    return [int(op), slot, blueprint, blend, target, speed]


WAIT = _action(Op.WAIT)


class Scheduled(_Ruled):
    """Row n follows `schedules[n]`. Memory: epoch, best loss so far, epochs since it was beaten."""

    def __init__(self, spaces: Spaces, schedules: Sequence[Schedule], horizon: int, observe_time: bool = True) -> None:
        super().__init__(spaces)
        self.schedules = tuple(schedules)
        self.stage_scale = horizon if observe_time else BLIND_EPOCHS

    def _choose(self, view: HostView, memory: NDArray[np.float32]) -> list[int]:
        plan, obs = self.schedules[view.row], view.obs
        epoch = int(memory[0])
        self._remember(plan, float(np.expm1(self.reading.base(obs, "loss")[0, 0])), memory)
        tended = self._tend(plan, view)
        if tended is not None:
            return tended
        active = int(self.reading.slot(obs, "active").sum())
        if active >= plan.seeds or epoch < plan.start or not self._due(plan, epoch, memory):
            return WAIT
        for slot in range(self.spaces.slots):
            affordable = view.masks.rest[view.row, Op.GERMINATE, slot, plan.blueprint]
            if view.legal(Op.GERMINATE, slot) and affordable:
                memory[2] = 0
                return _action(
                    Op.GERMINATE, slot, plan.blueprint, plan.blend, plan.alpha_target, plan.alpha_speed
                )  # fmt: skip
        return WAIT

    @staticmethod
    def _remember(plan: Schedule, loss: float, memory: NDArray[np.float32]) -> None:
        epoch, best = memory[0], memory[1]
        better = epoch == 0 or loss < best * (1.0 - (plan.threshold if plan.kind == "plateau" else 0.0))
        memory[0] = epoch + 1
        memory[1] = loss if better else best
        memory[2] = 0 if better else memory[2] + 1

    @staticmethod
    def _due(plan: Schedule, epoch: int, memory: NDArray[np.float32]) -> bool:
        if plan.kind == "plateau":
            return bool(memory[2] >= plan.wait)
        return (epoch - plan.start) % plan.wait == 0

    def _tend(self, plan: Schedule, view: HostView) -> list[int] | None:
        """Return the next action for an existing seed, most advanced first, or None."""
        obs, stages = view.obs, view.stages
        contribution = self.reading.slot(obs, "contribution")[0]
        norm = self.reading.slot(obs, "gradient_norm")[0]
        in_stage = self.reading.slot(obs, "epochs_in_stage")[0, :, 0] * self.stage_scale
        for slot in view.furthest_first():
            if stages[slot] == Stage.HOLDING:
                known, points = contribution[slot]
                worth = float(np.sign(points) * np.expm1(abs(points) * np.log(101.0)))
                if plan.keep_above is not None and (not known or worth < plan.keep_above):
                    return _action(Op.PRUNE, slot, speed=INSTANT)
                if view.legal(Op.FOSSILIZE, slot):
                    return _action(Op.FOSSILIZE, slot)
            if stages[slot] == Stage.TRAINING and in_stage[slot] >= plan.training - 0.5:
                if plan.kind == "gradient" and not (norm[slot, 0] and np.expm1(norm[slot, 1]) >= plan.threshold):
                    return _action(Op.PRUNE, slot, speed=INSTANT)
                if view.legal(Op.ADVANCE, slot):
                    return _action(Op.ADVANCE, slot)
            if stages[slot] == Stage.GERMINATED and view.legal(Op.ADVANCE, slot):
                return _action(Op.ADVANCE, slot)
        return None


class RandomSchedule(_Ruled):
    """Grows as many seeds as row n's count says, each anything legal at any time. Memory: epoch, seeds started."""

    LEAST_EPOCHS = 4  # germinate, advance, train, hold

    def __init__(self, spaces: Spaces, counts: Sequence[int], horizon: int) -> None:
        super().__init__(spaces)
        self.counts, self.horizon = tuple(counts), horizon

    def _choose(self, view: HostView, memory: NDArray[np.float32]) -> list[int]:
        noise, masks = view.noise, view.masks
        epoch, started = int(memory[0]), int(memory[1])
        memory[0] = epoch + 1
        for slot in view.furthest_first():
            if view.legal(Op.FOSSILIZE, slot):
                return _action(Op.FOSSILIZE, slot)
            patient = view.stages[slot] == Stage.TRAINING and noise[1] > 1 / 3
            if view.legal(Op.ADVANCE, slot) and not patient:
                return _action(Op.ADVANCE, slot)
        wanted, left = self.counts[view.row] - started, max(1, self.horizon - self.LEAST_EPOCHS - epoch)
        assert masks.slot is not None
        free = np.flatnonzero(masks.slot[view.row, Op.GERMINATE])
        if not free.size or noise[0] >= wanted / left:  # every set of epochs is as likely as any other
            return WAIT
        memory[1] = started + 1
        slot = int(_pick(free, noise[1]))
        sizes = self.spaces.action.sizes
        legal = np.flatnonzero(masks.rest[view.row, Op.GERMINATE, slot, : sizes[2]])
        rest = [int(noise[k] * sizes[k]) for k in (3, 4, 5)]
        return [int(Op.GERMINATE), slot, int(_pick(legal, noise[2])), *rest]


def _pick(choices: NDArray[np.int64], noise: float) -> int:
    return int(choices[int(noise * len(choices))])
