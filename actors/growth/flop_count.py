"""`FlopCount`: what seeds cost in a user's model, by PyTorch's FLOP counter."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from actors.growth.seed_manager import SeedManager
from actors.slots.compute import TRAINING_PASSES
from actors.slots.growth_state import GrowthState
from actors.slots.slot_shape import SlotKind

logger = logging.getLogger(__name__)


@dataclass
class CountedFlops:
    """What was counted so far."""

    seeds: list[list[float | None]]  # forward FLOPs by slot and blueprint, as in `SlotShape.flops`; None: not counted
    inputs: int = 0  # elements of the model's input in a minibatch; 0 if unknown


class FlopCount:
    """Counts the forward FLOPs of each kind of seed once, while the first one learns.

    The unit is that in which the model has as many FLOPs as parameters, so that the parameters of seeds stand in until
    they are counted, and where they cannot be. The count is made in two passes of their own through one minibatch, with
    the seed and without it. Their results are discarded: counting cannot change what is trained.
    """

    def __init__(self, growth: GrowthState, seeds: SeedManager) -> None:
        self._growth, self._seeds = growth, seeds
        self.counted = CountedFlops([[None] * len(shape.flops) for shape in growth.slot_shapes])
        self._minibatches = 0  # of this epoch
        self._reported = False

    def minibatch(self, loss: Callable[[], Tensor], learners: Iterable[int]) -> None:
        """Take note of a minibatch, and count what has not been counted of seeds that learn on it."""
        self._minibatches += 1
        for s in learners:
            blueprint = self._growth.slots[s].blueprint
            if self.counted.seeds[s][blueprint] is None:
                flops, kind = self._count(s, loss), self._growth.slot_shapes[s].kind
                for other, shape in enumerate(self._growth.slot_shapes):
                    if other == s or kind is shape.kind is SlotKind.COLUMN:  # columns are alike
                        self.counted.seeds[other][blueprint] = flops
                self.use(self.counted)

    def use(self, counted: CountedFlops) -> None:
        """Go by what was counted, here or elsewhere."""
        self.counted = counted
        self._growth.set_slot_shapes(
            [
                replace(shape, flops=tuple(f if f is not None else c for f, c in zip(known, shape.costs, strict=True)))
                for known, shape in zip(counted.seeds, self._growth.slot_shapes, strict=True)
            ]
        )

    def take(self, inputs_of_evaluation: float) -> tuple[float, float]:
        """Return, and forget, how often the model ran beside its training, per minibatch; and what an evaluation that
        reads so many elements costs, in epochs of the bare model, 0 if unknown."""
        minibatches, self._minibatches = self._minibatches, 0
        passes = self._seeds.passes / minibatches if minibatches else 0.0
        self._seeds.passes = 0
        trained = TRAINING_PASSES * minibatches * self.counted.inputs
        return passes, inputs_of_evaluation / trained if trained else 0.0

    def _count(self, slot: int, loss: Callable[[], Tensor]) -> float:
        shape, blueprint = self._growth.slot_shapes[slot], self._growth.slots[slot].blueprint
        model = self._growth.host_flops
        if (adopted := self._seeds.adopted) is not None:
            model = self._growth.slot_shapes[adopted].flops[self._growth.slots[adopted].blueprint] or model
        try:
            bare, self.counted.inputs = self._pass(loss, ())
            grown, _ = self._pass(loss, (slot,))
            reason = "" if bare and (grown > bare or shape.kind is SlotKind.STREAM) else "PyTorch's counter finds none"
            if any(isinstance(module, nn.RNNBase) for module in self._seeds.called.modules()):
                reason = "PyTorch's counter does not know recurrent layers"
        except Exception as error:  # FLOPs are no reason to end a training run
            reason = " ".join(str(error).split()) or type(error).__name__
        if not reason:
            return model * (grown - bare) / bare
        if not self._reported:
            self._reported = True
            logger.warning("FLOPs cannot be counted, and numbers of parameters stand in for them: %s", reason)
        return float(shape.costs[blueprint] or 0.0)

    def _pass(self, loss: Callable[[], Tensor], slots: tuple[int, ...]) -> tuple[int, int]:
        """Return the FLOPs of the loss with the seeds of these slots, and how many elements the model read."""
        with (
            self._seeds.beside(dict.fromkeys(slots, 0.5)),
            inputs_of(self._seeds.called) as inputs,
            warnings.catch_warnings(action="ignore"),  # compiled parts complain of the counter's hooks
            FlopCounterMode(display=False) as counter,
        ):
            loss()
        return counter.get_total_flops(), sum(inputs)


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[int]]:
    """Yield a list to which each call of the module within the context adds the size of its first tensor."""
    sizes: list[int] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        sizes.append(next((t.numel() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)), 0))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield sizes
    finally:
        handle.remove()
