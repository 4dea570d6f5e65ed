"""Factored actions: ops, heads, masks and the causal table, which says which heads are relevant to which op.

An action is one choice per head. The first head, `op`, determines which of the other heads are *relevant*;
an irrelevant head takes its canonical choice (index 0) and contributes nothing to log-prob, ratio, entropy,
KL or loss. Heads are sampled in order: op; slot given op; the remaining heads given op and slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.types.continuous import CELLS, from_cells


class Op(IntEnum):
    """Operations of the seed-training environment; all but WAIT act on one slot."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5


MAX_CHOICES = 2**16  # of all independent heads together; each is a byte of every step's mask
BLENDS = ("add", "multiply", "gated")
"""How a seed joins what it grows after. A column is mixed with the model instead, under the first of these names."""
ALPHA_TARGETS = (0.5, 0.7, 1.0)
ALPHA_SPEEDS_EPOCHS = (0, 3, 5, 8)  # 0 = instant

RELEVANT_HEADS: dict[Op, tuple[str, ...]] = {
    Op.WAIT: (),
    Op.GERMINATE: ("slot", "blueprint", "blend", "alpha_target", "alpha_speed"),
    Op.SET_ALPHA_TARGET: ("slot", "alpha_target", "alpha_speed"),
    Op.PRUNE: ("slot", "alpha_speed"),
    Op.FOSSILIZE: ("slot",),
    Op.ADVANCE: ("slot",),
}


@dataclass(frozen=True)
class Head:
    """A part of the action: categorical, or one dimension of a `Box` if `bounds` are given.

    A continuous head has one mask entry, which is always legal. Its column of an action holds a cell of the grid of
    `actors.types.continuous`. A bound that is None is infinite.
    """

    name: str
    choices: tuple[str, ...]
    bounds: tuple[float | None, float | None] | None = None
    squash: bool = False  # by tanh to the bounds, instead of clipping there

    def __post_init__(self) -> None:
        if self.continuous and len(self.choices) != 1:
            raise ValueError(f"the continuous head {self.name} has {len(self.choices)} choices, expected 1")
        if self.squash and (self.bounds is None or None in self.bounds):
            raise ValueError(f"{self.name} is squashed, which needs two finite bounds")

    @property
    def continuous(self) -> bool:
        return self.bounds is not None

    @property
    def size(self) -> int:
        return len(self.choices)


@dataclass(frozen=True)
class ActionSpec:
    """The heads in sampling order and the causal table.

    `relevance[o][k]` says whether head k is relevant when the first head chose o. If `conditioned`, the heads are
    (op, slot, others...) and later heads depend on the earlier choices; otherwise they are independent.
    """

    heads: tuple[Head, ...]
    relevance: tuple[tuple[bool, ...], ...]
    conditioned: bool = True

    def __post_init__(self) -> None:
        if len(self.relevance) != self.heads[0].size:
            raise ValueError(f"relevance has {len(self.relevance)} rows for {self.heads[0].size} ops")
        if any(len(row) != len(self.heads) or not row[0] for row in self.relevance):
            raise ValueError("each relevance row needs one entry per head, and the first entry must be true")
        if self.conditioned and (len(self.heads) < 2 or self.heads[1].name != "slot"):
            raise ValueError("the first two conditioned heads must be op and slot")
        flags = [h.continuous for h in self.heads]
        if flags[0] or flags != sorted(flags) or (self.conditioned and any(flags)):
            raise ValueError("continuous heads follow at least one categorical head, and are not conditioned")

    @cached_property
    def num_continuous(self) -> int:
        """Number of continuous heads, which are the last ones."""
        return sum(h.continuous for h in self.heads)

    @cached_property
    def num_categorical(self) -> int:
        return len(self.heads) - self.num_continuous

    @cached_property
    def limits(self) -> tuple[int, ...]:
        """Per head, the number that its column of an action stays below."""
        return tuple(CELLS if h.continuous else h.size for h in self.heads)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(h.size for h in self.heads)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(h.name for h in self.heads)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Start of each head's section in a flat mask."""
        return tuple(int(n) for n in np.cumsum((0, *self.sizes[:-1])))

    @property
    def num_ops(self) -> int:
        return self.heads[0].size

    @property
    def num_slots(self) -> int:
        return self.heads[1].size if self.conditioned else 0

    @property
    def flat_size(self) -> int:
        return sum(self.sizes)

    @property
    def rest_heads(self) -> tuple[Head, ...]:
        """The heads after op and slot, or all but the first in an action space without slots."""
        return self.heads[2 if self.conditioned else 1 :]

    @property
    def rest_size(self) -> int:
        """Total number of choices of all `rest_heads`."""
        return sum(h.size for h in self.rest_heads)

    @cached_property
    def relevance_table(self) -> NDArray[np.bool_]:  # [num_ops, num_heads]
        return np.array(self.relevance, dtype=np.bool_)

    def split(self, flat: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Split a flat mask `[..., flat_size]` into one array `[..., size]` per head."""
        return [flat[..., o : o + n] for o, n in zip(self.offsets, self.sizes, strict=True)]


@dataclass(frozen=True)
class Profile:
    """The ops and heads that a policy chooses from; the choices of the absent heads are fixed."""

    ops: tuple[Op, ...]
    heads: tuple[str, ...]  # besides op
    automatic_advance: bool  # the environment applies ADVANCE as soon as its gate is passed
    fixed: tuple[tuple[Op, str, int], ...] = ()  # (op, absent head, choice)

    def choices(self, op: Op, action: Sequence[int]) -> dict[str, int]:
        """Return the choice of every head besides op, by name, including fixed ones."""
        fixed = {head: choice for o, head, choice in self.fixed if o is op}
        return fixed | dict(zip(self.heads, action[1:], strict=True))


PROFILES = {
    "tamiyo": Profile(tuple(Op), ("slot", "blueprint", "blend", "alpha_target", "alpha_speed"), False),
    "classic": Profile(
        (Op.WAIT, Op.GERMINATE, Op.FOSSILIZE, Op.PRUNE),
        ("slot", "blueprint", "blend"),
        True,
        (
            (Op.GERMINATE, "alpha_target", ALPHA_TARGETS.index(1.0)),
            (Op.GERMINATE, "alpha_speed", ALPHA_SPEEDS_EPOCHS.index(5)),
            (Op.PRUNE, "alpha_speed", ALPHA_SPEEDS_EPOCHS.index(0)),
        ),
    ),
}


def seed_action_spec(slots: int, blueprints: tuple[str, ...], profile: str = "tamiyo") -> ActionSpec:
    """Build the action spec of the seed-training environment; `blueprints[0]` is NOOP."""
    choices = {
        "slot": tuple(str(s) for s in range(slots)),
        "blueprint": blueprints,
        "blend": BLENDS,
        "alpha_target": tuple(str(a) for a in ALPHA_TARGETS),
        "alpha_speed": tuple("instant" if n == 0 else f"{n} epochs" for n in ALPHA_SPEEDS_EPOCHS),
    }
    subset = PROFILES[profile]
    heads = (Head("op", tuple(op.name for op in subset.ops)), *(Head(name, choices[name]) for name in subset.heads))
    relevance = tuple(tuple(h.name == "op" or h.name in RELEVANT_HEADS[op] for h in heads) for op in subset.ops)
    return ActionSpec(heads, relevance)


def independent_spec(sizes: Sequence[int], continuous: Sequence[Head] = ()) -> ActionSpec:
    """Build a spec of independent, always relevant heads: a Gymnasium Discrete (one head) or MultiDiscrete space, and
    the dimensions of Box spaces. Without categorical parts, the first head has a single choice. Raises `ValueError` for
    more than `MAX_CHOICES`."""
    if sum(sizes) + len(continuous) > MAX_CHOICES:
        raise ValueError(f"{sum(sizes) + len(continuous)} choices of actions, more than {MAX_CHOICES}")
    names = ["action"] if len(sizes) == 1 else [f"action{k}" for k in range(len(sizes))]
    heads = tuple(Head(name, tuple(map(str, range(n)))) for name, n in zip(names, sizes, strict=True))
    heads = (*(heads or (Head("act", ("act",)),)), *continuous)
    return ActionSpec(heads, ((True,) * len(heads),) * heads[0].size, conditioned=False)


def continuous_values(spec: ActionSpec, actions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the values `[..., C]` in the environment of the continuous heads of `actions [..., H]`.

    With two finite bounds, u or tanh(u) is scaled so that -1 and 1 are the bounds. Without, u is the value itself.
    Values are clipped to the bounds.
    """
    first = spec.num_categorical
    values = from_cells(actions[..., first:])
    for k, head in enumerate(spec.heads[first:]):
        low, high = head.bounds or (None, None)
        unit = np.tanh(values[..., k]) if head.squash else values[..., k]
        if low is not None and high is not None:
            unit = low + (high - low) * (unit + 1.0) / 2.0
        values[..., k] = np.clip(unit, -np.inf if low is None else low, np.inf if high is None else high)
    return values


class ActionMasks(NamedTuple):
    """Legal choices, before any head has been sampled; bool, True = legal.

    op:   [..., num_ops]
    slot: [..., num_ops, S]        legal slots given the op
    rest: [..., num_ops, S, R]     legal choices of the remaining heads, concatenated, given op and slot

    For unconditioned specs, `op` is the first head, `slot` is None and `rest` is [..., flat_size - num_ops].
    """

    op: NDArray[np.bool_]
    slot: NDArray[np.bool_] | None
    rest: NDArray[np.bool_]

    @classmethod
    def of_flat(cls, spec: ActionSpec, flat: NDArray[np.bool_]) -> ActionMasks:
        """Build the masks of an unconditioned spec from a flat mask `[..., flat_size]`, all heads concatenated."""
        if spec.conditioned:
            raise ValueError("a flat mask does not say which slots are legal for which op")
        return cls(flat[..., : spec.num_ops], None, flat[..., spec.num_ops :])

    @classmethod
    def all_legal(cls, spec: ActionSpec, batch: int) -> ActionMasks:
        """Build masks of `batch` rows that allow everything."""
        if not spec.conditioned:
            return cls.of_flat(spec, np.ones((batch, spec.flat_size), np.bool_))
        slots = (batch, spec.num_ops, spec.num_slots)
        return cls(np.ones(slots[:2], np.bool_), np.ones(slots, np.bool_), np.ones((*slots, spec.rest_size), np.bool_))

    def flat(self) -> NDArray[np.bool_]:
        """Return a flat mask `[..., flat_size]`: per head, the union over all legal earlier choices.

        This is the form of Gymnasium's `info["action_mask"]`.
        """
        if self.slot is None:
            return np.concatenate([self.op, self.rest], axis=-1)
        slot = self.slot & self.op[..., None]
        rest = self.rest & slot[..., None]
        return np.concatenate([self.op, slot.any(-2), rest.any((-3, -2))], axis=-1)

    def narrowed(self, ops: tuple[Op, ...], rest_size: int) -> ActionMasks:
        """Restrict the seed environment's full masks to a profile: to `ops` and the first `rest_size` later choices."""
        assert self.slot is not None
        if len(ops) == len(self.op) and rest_size == self.rest.shape[-1]:
            return self
        chosen = list(ops)
        return ActionMasks(self.op[chosen], self.slot[chosen], self.rest[chosen, :, :rest_size])

    def in_force(self, spec: ActionSpec, actions: NDArray[np.int64], causal: bool = True) -> NDArray[np.bool_]:
        """Return the flat mask `[..., flat_size]` given the chosen actions `[..., num_heads]`, as episodes store it.

        Irrelevant heads keep only their canonical choice, or all choices if not `causal`, so that every head has at
        least one legal choice.
        """
        if self.slot is None:
            return self.flat()
        canonical: NDArray[np.bool_] = np.full(spec.flat_size, not causal)
        canonical[list(spec.offsets)] = True
        op, slot = actions[..., 0], actions[..., 1]
        slot_mask = np.take_along_axis(self.slot, op[..., None, None], axis=-2)[..., 0, :]
        by_slot = np.take_along_axis(self.rest, op[..., None, None, None], axis=-3)[..., 0, :, :]
        rest = np.take_along_axis(by_slot, slot[..., None, None], axis=-2)[..., 0, :]
        flat = np.concatenate([self.op, slot_mask, rest], axis=-1)
        relevant = np.repeat(spec.relevance_table, spec.sizes, axis=1)[op]  # [..., flat_size]
        return np.where(relevant, flat, canonical)


def playable(spec: ActionSpec, masks: ActionMasks) -> NDArray[np.bool_]:
    """Return `[...]` bool: some op is legal, and every legal prefix leaves every relevant head a legal choice."""
    some: NDArray[np.bool_] = np.empty((*masks.rest.shape[:-1], len(spec.rest_heads)), dtype=np.bool_)
    start = 0
    for k, head in enumerate(spec.rest_heads):
        some[..., k] = np.any(masks.rest[..., start : start + head.size], axis=-1)
        start += head.size
    if masks.slot is None:
        met = (some[..., None, :] | ~spec.relevance_table[:, 1:]).all(-1)  # [..., O]
    else:
        by_slot = np.asarray((some | ~spec.relevance_table[:, None, 2:]).all(-1))  # [..., O, S]
        pointed = masks.slot.any(-1) & (by_slot | ~masks.slot).all(-1)
        met = np.where(spec.relevance_table[:, 1], pointed, by_slot[..., 0])
    return np.asarray(masks.op.any(-1) & (met | ~masks.op).all(-1))


def forced_steps(spec: ActionSpec, actions: NDArray[np.int64], masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return `[...]` bool: steps with exactly one legal joint action, given the masks in force.

    Masks in force depend on the chosen op and slot. If only one op and one slot are legal, they are those of the only
    possible op and slot, so one choice in every relevant head means one joint action.
    """
    heads = zip(spec.split(masks), spec.heads, strict=True)
    single = np.stack([(m.sum(-1) == 1) & (not head.continuous) for m, head in heads], axis=-1)
    return np.asarray((single | ~spec.relevance_table[actions[..., 0]]).all(-1))
