"""Analytic costs: floating-point operations of products of matrices and of convolutions, counted from their shapes.

Norms, activations and blends are left out. A training pass counts three forward passes (one forward, two backward), for
the shadow pass of a seed in the stream too, which needs fewer: an upper bound. A column that learns needs no other pass
through its host, and a host that a column has replaced is not run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from actors.blueprints.blueprint import NOOP, Blueprint
from actors.env.episode.host_episode import HostEpisode
from actors.env.episode.timeline import Timeline
from actors.env.hosts.column import column_host
from actors.env.hosts.host import Host, draw_params
from actors.slots.contributions import subsets_to_evaluate
from actors.slots.stage import BLENDED, Stage

TRAINING_PASSES = 3
_BLENDED = {stage.name for stage in BLENDED}


class Table(NamedTuple):
    """Of one sample's forward pass."""

    host: int
    seeds: tuple[dict[str, int], ...]  # by slot in the stream, and blueprint
    columns: dict[str, int]  # by blueprint

    def seed(self, slot: int, blueprint: str) -> int:
        """Of what grew in a slot; slots for columns come after those of the stream."""
        return self.seeds[slot][blueprint] if slot < len(self.seeds) else self.columns[blueprint]


class Cost(NamedTuple):
    """Of one episode, FLOPs."""

    training: float
    measuring: float  # validation and ablations
    inference: float  # one sample through what there is at the end


_TABLES: dict[tuple[str, tuple[int, ...]], Table] = {}


def table(host: Host, shape: tuple[int, ...]) -> Table:
    """`shape` is that of one sample."""
    key = (repr(host), shape)  # hosts are plain data
    if key not in _TABLES:
        _TABLES[key] = _table(host, shape)
    return _TABLES[key]


def _table(host: Host, shape: tuple[int, ...]) -> Table:
    rng = np.random.default_rng(0)
    bare = _bare(host, shape, rng)
    seeds = tuple(
        {b.name: _count(host, shape, s, b, rng) - bare for b in host.family.blueprints if b is not NOOP}
        for s in range(host.slots)
    )
    columns = {c.name: _bare(column_host(host, c.scale), shape, rng) for c in host.family.columns if c is not None}
    return Table(bare, seeds, columns)


def _bare(host: Host, shape: tuple[int, ...], rng: np.random.Generator) -> int:
    return _count(host, shape, -1, NOOP, rng)


def _count(host: Host, shape: tuple[int, ...], at: int, blueprint: Blueprint, rng: np.random.Generator) -> int:
    params = draw_params(host.shapes(), rng, torch.float32)
    grown = {}
    if at >= 0:
        grown = draw_params(blueprint.shapes(host.slot_width(at)), rng, torch.float32)

    def slot(s: int, h: Tensor) -> Tensor:
        return blueprint.forward(grown, h, None) if s == at else h

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        host.forward(params, torch.zeros(1, *shape), slot)
    return int(counter.get_total_flops())


def cost(episode: HostEpisode) -> Cost:
    """Of an episode that has ended, epoch by epoch."""
    flops = table(episode.host, episode.task.shape)
    samples, rows = episode.settings.inner_steps * episode.config.batch_size, len(episode.task.val)
    training = measuring = 0.0
    for t in range(episode.epoch):
        blended, learning = _parts(episode.timeline, t)
        spent = {s: flops.seed(s, name) for s, name in (blended | learning).items()}
        host = 0 if _replaced(episode.timeline, t, len(flops.seeds)) else flops.host
        present = host + sum(spent[s] for s in blended)
        in_shadow = {s for s in learning if s < len(flops.seeds)}
        shadow = host + sum(n for s, n in spent.items() if s < len(flops.seeds)) if in_shadow else 0
        shadow += sum(spent[s] for s in learning if s not in in_shadow)
        training += TRAINING_PASSES * samples * (present + shadow)
        due = (t + 1) % episode.config.contribution_every == 0
        subsets = set(subsets_to_evaluate(dict.fromkeys(blended, 1.0), dict.fromkeys(learning, 1.0)) if due else ())
        subsets |= {frozenset(blended)}
        in_stream = {frozenset(s for s in subset if s < len(flops.seeds)) for subset in subsets}
        # One pass each, whatever the subset.
        columns = {s for subset in subsets for s in subset if s >= len(flops.seeds)}
        measured = sum(host + sum(spent[s] for s in subset) for subset in in_stream)
        measuring += rows * (measured + sum(spent[s] for s in columns))
    grown = sum(flops.seed(g.slot, episode.host.family.name_of(g.blueprint)) for g in episode.topology())
    return Cost(training, measuring, float(grown + (0 if episode.lifecycle.replaced else flops.host)))


def _replaced(timeline: Timeline, t: int, stream: int) -> bool:
    """Whether a column had taken the host's place for good in epoch t; the first `stream` slots hold none."""
    slots = zip(timeline.stages[stream:], timeline.alphas[stream:], strict=True)
    return any(stages[t] == Stage.FOSSILIZED.name and alphas[t] == 1.0 for stages, alphas in slots)


def _parts(timeline: Timeline, t: int) -> tuple[dict[int, str], dict[int, str]]:
    """(blended, in training) in epoch t, slot to blueprint: by the stages after it, but for a seed whose ramp to 0
    ended with the epoch, which still took part in it."""
    blended, learning = {}, {}
    for s, (stages, names) in enumerate(zip(timeline.stages, timeline.blueprints, strict=True)):
        if stages[t] in _BLENDED:
            blended[s] = names[t]
        elif stages[t] == Stage.TRAINING.name:
            learning[s] = names[t]
        elif stages[t] == Stage.PRUNED.name and t and stages[t - 1] in _BLENDED:
            pruned_at_once = timeline.ops[t] == "PRUNE" and timeline.op_slots[t] == s
            if not pruned_at_once:
                blended[s] = names[t - 1]
    return blended, learning
