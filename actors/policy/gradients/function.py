"""`SequenceKernels`: evaluates a network at given actions of whole sequences by the kernels of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.kernels.policy.compile import load_gradients
from actors.policy.cores.sequences import Steps, TimeOrder
from actors.policy.encoder import FlatEncoder
from actors.policy.gradients.architecture import SequenceNetwork, parameters_in_order, sizes

Array = NDArray[Any]


MOST_STEPS = 4096
"""Steps that are evaluated together where nothing is kept of them; the activations of one take about 15 KB."""


class StepArguments(NamedTuple):
    """The fields of `Steps` as the kernels take them."""

    obs: Array
    blueprint_indices: Array
    actions: Array
    masks: Array
    h: Array
    c: Array

    @classmethod
    def of(cls, steps: Steps) -> StepArguments:
        return cls(*map(_plain, (*steps[:4], steps.state.h, steps.state.c)))


class SequenceKernels:
    """The kernels with what is constant of one network. Its parameters are read where they are at each call."""

    def __init__(self, network: SequenceNetwork) -> None:
        self.kernels = load_gradients()
        self.encoder = network.encoder
        self.parameters = parameters_in_order(network)
        self.net = sizes(network)
        self.plan = np.array(self.net, np.int64)
        self.counts = np.array([0 if p is None else p.numel() for p in self.parameters], np.int64)
        self.given = [p for p in self.parameters if p is not None]
        spec, config = network.spaces.action, network.config
        limits = np.array([config.probability_floor, network.floor_mass])
        self.rules = np.array(spec.sizes), network.counted.numpy(), limits
        self.like = np.zeros(0, np.float32)
        self._stats: tuple[tuple[int, ...], Array] | None = None

    def evaluate(self, steps: Steps) -> tuple[Tensor, ...]:
        """Return the first five fields of `actors.policy.network.Evaluation`.

        Without gradient, steps are evaluated in parts, since nothing is kept of them.
        """
        if torch.is_grad_enabled():
            results: tuple[Tensor, ...] = _Evaluate.apply(self, steps, *self.given)  # type: ignore[no-untyped-call]
            return results
        orders = steps.layout.time_orders(MOST_STEPS)
        return self.run(StepArguments.of(steps), orders, self.addresses(self.given))[0]

    def run(self, steps: StepArguments, orders: list[TimeOrder], addresses: Array) -> tuple[tuple[Tensor, ...], Array]:
        """Return results and activations, those of the last of the orders.

        Raises `ValueError` for inputs of other shapes, which kernels do not check.
        """
        n, net = sum(len(own.order) for own in orders), self.net
        rows = max((int(own.rows.max(initial=-1)) for own in orders), default=-1) + 1
        state = steps[4:] if net.recurrent else ()
        expected = [(n, width) for width in (net.obs, net.slots, net.heads, net.choices)]
        expected += [(net.layers, net.hidden) for _ in state]
        found = [*(a.shape for a in steps[:4]), *((a.shape[0], a.shape[2]) for a in state)]
        if found != expected or any(a.shape[1] < rows for a in state):
            raise ValueError(f"inputs of {n} steps in {rows} rows have shapes {found}, expected {expected}")
        shapes = (n, net.heads), (n, net.heads), (n,), (n,), (n, net.hidden)
        results = [np.empty(shape, np.float32) for shape in shapes]
        most = max(len(own.order) for own in orders)
        activations = np.empty(self.kernels.activation_size(self.like, self.plan, most), np.float32)
        given = self.like, self.plan, addresses, self.counts, self.statistics(), *self.rules
        for own in orders:
            self.kernels.evaluate(*given, *own, *steps, activations, *results)
        return tuple(map(torch.from_numpy, results)), activations

    def addresses(self, tensors: Sequence[Tensor]) -> Array:
        """Return the addresses of the tensors of all parameters that the network has, and 0 for the others."""
        found = iter(tensors)
        return np.array([0 if p is None else next(found).data_ptr() for p in self.parameters], np.int64)

    def statistics(self) -> Array:
        """Return mean, scale and clip of the normalization of a whole observation."""
        normalizers = (
            [self.encoder.normalizer]
            if isinstance(self.encoder, FlatEncoder)
            else [self.encoder.base_normalizer, self.encoder.slot_normalizer]
        )
        versions = tuple(t._version for own in normalizers for t in (own.mean, own.variance))
        if self._stats is None or self._stats[0] != versions:
            times = [1, self.net.slots][: len(normalizers)]
            parts = [t.repeat(k) for own, k in zip(normalizers, times, strict=True) for t in (own.mean,)]
            parts += [t.repeat(k) for own, k in zip(normalizers, times, strict=True) for t in (own.scale(),)]
            self._stats = versions, np.concatenate([*(t.numpy() for t in parts), [normalizers[0].clip]])
        return self._stats[1]


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: SequenceKernels, steps: Steps, *parameters: Tensor) -> tuple[Tensor, ...]:
        arguments, order, addresses = StepArguments.of(steps), steps.layout.time_order, own.addresses(parameters)
        outputs, activations = own.run(arguments, [order], addresses)
        ctx.mark_non_differentiable(*outputs[3:])
        ctx.own, ctx.kept = own, (addresses, arguments, order, activations)
        ctx.save_for_backward(*parameters)  # autograd refuses to go back through parameters that have changed
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        own: SequenceKernels = ctx.own
        addresses, steps, order, activations = ctx.kept
        flat = torch.zeros(int(own.counts.sum()))
        parts = torch.split(flat, [p.numel() for p in ctx.saved_tensors])
        wanted = [part.view_as(p) for part, p in zip(parts, ctx.saved_tensors, strict=True)]
        given = own.like, own.plan, addresses, own.counts, *own.rules
        inputs = *order, *steps[:4], steps.c, activations
        own.kernels.differentiate(*given, *inputs, *map(_plain, grads[:3]), own.addresses(wanted))
        return None, None, *wanted


def _plain(t: Tensor) -> Array:
    """Return a tensor as the kernels are compiled for: contiguous and writable."""
    array = t.detach().numpy()
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable else array.copy("C")


_OF: WeakKeyDictionary[SequenceNetwork, SequenceKernels] = WeakKeyDictionary()


def evaluate_steps(network: SequenceNetwork, steps: Steps) -> tuple[Tensor, ...]:
    """Return the first five fields of `actors.policy.network.Evaluation`, the first three with gradient."""
    own = _OF.get(network)
    if own is None or own.given[0] is not network.encoder.base[0].weight:
        own = _OF[network] = SequenceKernels(network)
    return own.evaluate(steps)
