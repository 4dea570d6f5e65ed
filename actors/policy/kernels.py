"""`NetworkKernels`: a network's step, and its evaluation at given actions with the gradient, by compiled kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from actors.config import PolicyConfig
from actors.kernels.decorators import Array
from actors.kernels.matmul import PANEL
from actors.kernels.policy.compile import load_kernels
from actors.kernels.policy.encoder import StepInputs
from actors.kernels.policy.scores import HeadRules, StepScores
from actors.kernels.policy.sizes import BLUEPRINT, OP_TABLE, POINTER, SLOT_TABLE, NetShape, Parameters, Weights
from actors.policy.cores.core import Feedforward, Recurrent
from actors.policy.cores.sequences import Steps, TimeOrder
from actors.policy.encoder import FlatEncoder, SlotEncoder
from actors.policy.heads import FactoredHeads
from actors.policy.normalizer import CLIP, ValueNormalizer
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces

MOST_STEPS = 4096
"""Steps that are evaluated together where nothing is kept of them; the activations of one take about 15 KB."""


class KernelNetwork(Protocol):
    """The parts of `actors.policy.network.FactoredRecurrentActorCritic` that the kernels compute."""

    spaces: Spaces
    config: PolicyConfig
    floor_mass: float
    encoder: SlotEncoder | FlatEncoder
    core: Feedforward | Recurrent
    norm: nn.LayerNorm
    heads: FactoredHeads
    critic: nn.Sequential
    value_normalizer: ValueNormalizer

    @property
    def value_output(self) -> nn.Linear: ...


class PackedWeights(NamedTuple):
    """What a step reads of one version of the weights."""

    flat: Array  # float32, see `actors.kernels.policy.sizes.Weights`
    stats: Array  # float64 [2 D + 1]: mean, scale and clip of the observation's normalization
    numbers: Array  # float64 [4]: probability floor, its largest total, mean and deviation of the values


class KernelOutput(NamedTuple):
    """The outcome of a step of N rows."""

    actions: Array  # int64 [N, H]
    log_probs: Array  # [N, H]
    masks: Array  # bool [N, A] in force
    values: Array  # [2, N] values and baseline values
    all_legal: bool  # whether every relevant head had a legal choice; where not, log-probs are not finite


class StepArrays(NamedTuple):
    """The fields of `Steps` as the kernels take them."""

    obs: Array
    blueprint_indices: Array
    actions: Array
    masks: Array
    h: Array
    c: Array


class NetworkKernels:
    """The kernels with what is constant of one network. Threads may share it: all that it keeps between calls is the
    observation's statistics, which any of them may compute again."""

    def __init__(self, network: KernelNetwork) -> None:
        self.kernels = load_kernels()
        self.encoder, self.value_normalizer = network.encoder, network.value_normalizer
        self.parameters = _parameters(network)
        self.given = [p for p in self.parameters if p is not None]
        self.net = _net_shape(network)
        self.plan = np.array(self.net, np.int64)
        self.table, self.packed_size = _table(self.parameters)
        spec, config = network.spaces.action, network.config
        floor, mass = float(config.probability_floor), float(network.floor_mass)
        self.rules = HeadRules(np.array(spec.sizes), np.ascontiguousarray(spec.relevance_table), floor, mass)
        self.numbers = np.array([floor, mass, 0.0, 1.0])  # evaluations have values in normalized units
        slot_mask = spec.num_ops * spec.num_slots
        self.widths = {
            "obs": self.net.obs,
            "blueprint_indices": self.net.slots,
            "masks.op": spec.num_ops,
            "masks.slot": slot_mask,
            "masks.rest": max(1, slot_mask) * spec.rest_size,
            "noise": self.net.heads,
        }
        self._stats: tuple[tuple[int, ...], Array] | None = None

    def pack(self) -> PackedWeights:
        """Return the weights as they are now, for `step`."""
        values = self.value_normalizer
        numbers = np.array([*self.numbers[:2], float(values.mean), float(values.std)])
        return PackedWeights(self._packed(self._addresses(self.given)), self._statistics(), numbers)

    def step(
        self,
        weights: PackedWeights,
        obs: Array,
        blueprint_indices: Array,
        masks: ActionMasks,
        noise: Array,
        greedy: Array,
        rows: Array,
        before: tuple[Array, Array],
        after: tuple[Array, Array],
    ) -> KernelOutput:
        """Choose for N rows, whose recurrent states h and c are at `rows [N]` of `before`; write those after the step
        to `after`, which may be the same. Rows marked in `greedy [N]` take the most likely choices.

        Raises `ValueError` for inputs of other shapes, which kernels do not check, and `IndexError` for a blueprint
        that there is not.
        """
        n, net = len(obs), self.net
        slot = masks.op[:, :0] if masks.slot is None else masks.slot
        inputs = [_plain(a) for a in (obs, blueprint_indices, masks.op, slot, masks.rest, noise)]
        lengths = {n, len(rows), len(greedy), *map(len, inputs)}
        if len(lengths) > 1 or [a.size for a in inputs] != [n * width for width in self.widths.values()]:
            shapes = dict(zip(self.widths, (a.shape for a in inputs), strict=True))
            raise ValueError(f"inputs of {n} rows do not fit the network: {shapes}, expected widths {self.widths}")
        obs, blueprint_indices, *legal, noise = inputs
        op, slot, rest = (mask.reshape(n, mask.size // n if n else 0) for mask in legal)
        choices = np.empty((n, net.heads), np.int64), np.empty((n, net.heads), np.float32)
        in_force, values = np.empty((n, net.choices), np.bool_), np.empty((2, n), np.float32)
        network = self.plan, self.table, weights.flat, weights.stats, *self.rules[:2], weights.numbers
        given = obs, blueprint_indices, op, slot, rest, noise, greedy, rows
        all_legal = self.kernels.step(*network, *given, *before, *choices, in_force, values, *after)
        return KernelOutput(*choices, in_force, values, all_legal)

    def evaluate(self, steps: Steps) -> tuple[Tensor, ...]:
        """Return the first five fields of `actors.policy.network.Evaluation`.

        Without gradient, steps are evaluated in parts, since nothing is kept of them.
        """
        if torch.is_grad_enabled():
            results: tuple[Tensor, ...] = _Evaluate.apply(self, steps, *self.given)  # type: ignore[no-untyped-call]
            return results
        return self._run(_arrays(steps), steps.layout.time_orders(MOST_STEPS), self._addresses(self.given))[0]

    def _run(self, steps: StepArrays, orders: list[TimeOrder], addresses: Array) -> tuple[tuple[Tensor, ...], Array]:
        """Return results and activations, those of the last of the orders.

        Raises `ValueError` for inputs of other shapes, which kernels do not check.
        """
        n, net = sum(len(part.order) for part in orders), self.net
        sequences = max((int(part.sequences.max(initial=-1)) for part in orders), default=-1) + 1
        state = steps[4:] if net.recurrent else ()
        expected = [(n, width) for width in (net.obs, net.slots, net.heads, net.choices)]
        expected += [(net.layers, net.hidden) for _ in state]
        found = [*(a.shape for a in steps[:4]), *((a.shape[0], a.shape[2]) for a in state)]
        if found != expected or any(a.shape[1] < sequences for a in state):
            raise ValueError(f"inputs of {n} steps in {sequences} sequences have shapes {found}, expected {expected}")
        shapes = (n, net.heads), (n, net.heads), (n,), (n,), (n, net.hidden)
        results = [np.empty(shape, np.float32) for shape in shapes]
        most = max(len(part.order) for part in orders)
        activations = np.empty(self.kernels.activation_size(self.plan, most), np.float32)
        packed, scores = Weights(self._packed(addresses), self.table), StepScores(*results[:3])
        network = self.plan, packed, self._statistics(), self.rules, self.numbers
        for order, *places in orders:
            inputs = StepInputs(order, *steps[:4])
            self.kernels.evaluate(*network, inputs, *places, *steps[4:], activations, scores, *results[3:])
        return tuple(map(torch.from_numpy, results)), activations

    def _packed(self, addresses: Array) -> Array:
        flat = np.empty(self.packed_size, np.float32)
        self.kernels.pack(self.plan, self.table, addresses, flat)
        return flat

    def _addresses(self, tensors: Sequence[Tensor]) -> Array:
        """Return the addresses of the tensors of all parameters that the network has, and 0 for the others."""
        found = iter(tensors)
        return np.array([0 if p is None else next(found).data_ptr() for p in self.parameters], np.int64)

    def _statistics(self) -> Array:
        """Return mean, scale and clip of the normalization of a whole observation."""
        normalizers = (
            [self.encoder.normalizer]
            if isinstance(self.encoder, FlatEncoder)
            else [self.encoder.base_normalizer, *[self.encoder.slot_normalizer] * self.net.slots]
        )
        versions = tuple(t._version for part in normalizers[:2] for t in (part.mean, part.variance))
        if self._stats is None or self._stats[0] != versions:
            parts = [*(part.mean for part in normalizers), *(part.scale() for part in normalizers)]
            self._stats = versions, np.concatenate([*(t.numpy() for t in parts), [CLIP]])
        return self._stats[1]


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, network: NetworkKernels, steps: Steps, *parameters: Tensor) -> tuple[Tensor, ...]:
        arrays, order, addresses = _arrays(steps), steps.layout.time_order, network._addresses(parameters)
        outputs, activations = network._run(arrays, [order], addresses)
        ctx.mark_non_differentiable(*outputs[3:])
        ctx.network, ctx.kept = network, (addresses, arrays, order, activations)
        ctx.save_for_backward(*parameters)  # autograd refuses to go back through parameters that have changed
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        network: NetworkKernels = ctx.network
        addresses, steps, order, activations = ctx.kept
        sizes = [p.numel() for p in ctx.saved_tensors]
        parts = torch.split(torch.zeros(sum(sizes)), sizes)
        wanted = [part.view_as(p) for part, p in zip(parts, ctx.saved_tensors, strict=True)]
        params, gradients = (Parameters(a, network.table) for a in (addresses, network._addresses(wanted)))
        inputs, by_result = StepInputs(order.order, *steps[:4]), StepScores(*(_plain(g.numpy()) for g in grads[:3]))
        given = network.plan, params, network.rules, inputs, order.times, order.sequences, steps.c, activations
        network.kernels.differentiate(*given, by_result, gradients)
        return None, None, *wanted


def _plain(array: Array) -> Array:
    """Return an array as the kernels are compiled for: contiguous and writable."""
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable and flags.aligned else array.copy("C")


def _arrays(steps: Steps) -> StepArrays:
    return StepArrays(*(_plain(t.detach().numpy()) for t in (*steps[:4], steps.state.h, steps.state.c)))


_KERNELS: WeakKeyDictionary[KernelNetwork, NetworkKernels] = WeakKeyDictionary()


def evaluate_steps(network: KernelNetwork, steps: Steps) -> tuple[Tensor, ...]:
    """Return the first five fields of `actors.policy.network.Evaluation`, the first three with gradient."""
    kernels = _KERNELS.get(network)
    if kernels is None or kernels.given[0] is not network.encoder.base[0].weight:
        kernels = _KERNELS[network] = NetworkKernels(network)
    return kernels.evaluate(steps)


def _net_shape(network: KernelNetwork) -> NetShape:
    config, spaces, spec = network.config, network.spaces, network.spaces.action
    slotted = isinstance(network.encoder, SlotEncoder)
    return NetShape(
        obs=spaces.obs_size,
        base=spaces.base_size if slotted else spaces.obs_size,
        slot_size=spaces.slot_size if slotted else 0,
        slots=spaces.slots,
        embedding=config.blueprint_embedding if spaces.slots else 0,
        blueprints=spaces.num_blueprints + 1,
        encoder=config.encoder_size,
        core_input=network.encoder.core_input_size,
        recurrent=int(isinstance(network.core, Recurrent)),
        layers=config.num_layers,
        hidden=config.hidden_size,
        head=config.head_width,
        ops=spec.num_ops,
        rest=len(spec.rest_heads),
        heads=len(spec.heads),
        choices=spec.flat_size,
        context=config.choice_embedding if network.heads.conditioned else 0,
        values=network.value_output.out_features,
        blind=int(config.blind),
        causal=int(config.causal_masks),
        floor=int(config.probability_floor > 0),
    )


def _parameters(network: KernelNetwork) -> list[nn.Parameter | None]:
    """Return the parameters in the order of `actors.kernels.policy.sizes`, None for absent ones."""
    encoder, heads, core = network.encoder, network.heads, network.core
    slotted, slots = isinstance(encoder, SlotEncoder), network.spaces.slots > 0
    return [
        *_some(encoder.base, 4),
        *_some(encoder.slot if slotted else None, 4),
        *_some(network.norm, 2),
        *_some(heads.op, 4),
        *_some(network.critic, 4),
        *_some(heads.pointer if heads.has_slots else None, 4),
        *_some(encoder.blueprint if slots else None, 1),
        *_some(encoder.slot if slots and not slotted else None, 1),
        *_some(heads.op_embedding if heads.conditioned else None, 1),
        *(p for head in heads.rest.values() for p in head.parameters()),
        *(core.lstm if isinstance(core, Recurrent) else core).parameters(),
    ]


def _some(module: nn.Module | None, count: int) -> Iterable[nn.Parameter | None]:
    return [None] * count if module is None else list(module.parameters())


def _table(parameters: list[nn.Parameter | None]) -> tuple[Array, int]:
    """Return the table of `actors.kernels.policy.sizes.Weights`, and the number of packed floats."""
    by_row = {POINTER + 2, BLUEPRINT, SLOT_TABLE, OP_TABLE}  # read as vectors
    table, size = np.zeros((len(parameters), 3), np.int64), 0
    for k, p in enumerate(parameters):
        if p is None:
            continue
        outputs, inputs = p.shape if p.dim() == 2 and k not in by_row else (p.numel(), 0)
        table[k] = size, outputs, inputs
        size += -(-outputs // PANEL) * PANEL * inputs if inputs else outputs
    return table, size
