"""`lay_out`: the weights of a network as the flat arrays that the kernels of `actors.kernels.policy` read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.kernels.matmul import LANES, PANEL, padded
from actors.kernels.policy.net import FEEDFORWARD, LSTM, MEMORY, Net
from actors.policy.acting.stepper import Stepper
from actors.policy.encoder import FlatEncoder
from actors.policy.network import FactoredRecurrentActorCritic

Array = NDArray[Any]


class KernelWeights(NamedTuple):
    """The first arguments of `run_step`."""

    plan: Array  # int64: a `Net` and its matrices
    w: Array  # float32
    stats: Array  # float64 [2 D + 1]
    numbers: Array  # float64 [4]
    sizes: Array  # int64 [H]
    relevance: Array  # bool [ops, H]


def pack(weight: Array) -> Array:
    """Return `weight [out, in]` as `pack_transposed` does, with zeros in the place of outputs that complete a panel."""
    outputs, inputs = weight.shape
    rows = np.zeros((-(-outputs // PANEL) * PANEL, inputs), np.float32)
    rows[:outputs] = weight
    return rows.reshape(-1, PANEL, inputs).transpose(0, 2, 1).ravel()


class _Layout:
    """Collects weights in one flat array. Every part begins at a multiple of LANES."""

    def __init__(self) -> None:
        self.parts: list[Array] = []
        self.size = 0

    def vector(self, tensor: Tensor) -> int:
        """Append a tensor and return its offset."""
        return self._append(tensor.detach().cpu().float().numpy().ravel())

    def matrix(self, weight: Tensor, bias: Tensor | None) -> list[int]:
        """Append a layer `[out, in]` and return its `Matrix`."""
        outputs, inputs = weight.shape
        biases = np.zeros(padded(outputs), np.float32)
        if bias is not None:
            biases[:outputs] = bias.detach().cpu().numpy()
        packed = pack(weight.detach().cpu().numpy())
        return [self._append(packed), self._append(biases), inputs, padded(outputs)]

    def _append(self, part: Array) -> int:
        start = self.size
        whole = np.zeros(-(-part.size // LANES) * LANES, np.float32)
        whole[: part.size] = part
        self.parts.append(whole)
        self.size += whole.size
        return start


@torch.no_grad()
def lay_out(network: FactoredRecurrentActorCritic) -> KernelWeights:
    """Lay out the weights of a network for which `has_kernels`."""
    stepper, layout = Stepper(network), _Layout()
    first, encoder, stats = _encoder(stepper, network, layout)
    cores, core = _core(stepper, layout)
    heads, last, head = _heads(stepper, network, layout)
    matrices = [*first, *heads, *core, *last, *cores]
    net = _net(network, encoder | head | _norm(layout, "core", stepper.norm))
    plan = np.array([*net, *(number for m in matrices for number in m)], np.int64)
    normalizer, config, spec = network.value_normalizer, network.config, network.spaces.action
    numbers = [config.probability_floor, network.floor_mass, float(normalizer.mean), float(normalizer.std)]
    return KernelWeights(
        plan,
        np.concatenate(layout.parts),
        stats,
        np.array(numbers),
        np.array(spec.sizes),
        np.ascontiguousarray(spec.relevance_table),
    )


_NONE = [0, 0, 0, 0]  # the `Matrix` of a layer that the network lacks


def _net(network: FactoredRecurrentActorCritic, offsets: dict[str, int]) -> Net:
    config, spaces, spec = network.config, network.spaces, network.spaces.action
    flat = isinstance(network.encoder, FlatEncoder)
    return Net(
        obs=spaces.obs_size,
        base=spaces.obs_size if flat else spaces.base_size,
        slot_size=0 if flat else spaces.slot_size,
        slots=spaces.slots,
        blueprints=spaces.num_blueprints + 1,
        encoder=config.encoder_size,
        core_input=network.encoder.core_input_size,
        core={"feedforward": FEEDFORWARD, "lstm": LSTM, "lstm+memory": MEMORY}[config.core],
        layers=config.num_layers,
        hidden=config.hidden_size,
        cells=config.memory_cells,
        cell_size=config.memory_size,
        head=config.head_width,
        ops=spec.num_ops,
        rest=len(spec.rest_heads),
        rest_size=spec.rest_size,
        conditioned=int(network.heads.conditioned),
        causal=int(config.causal_masks),
        q_op=int(config.critic == "q_op"),
        blind=int(config.blind),
        **({"base_gain": 0, "base_shift": 0, "slot_gain": 0, "slot_shift": 0, "blueprint": 0} | offsets),
    )


def _norm(layout: _Layout, name: str, norm: nn.LayerNorm) -> dict[str, int]:
    return {f"{name}_gain": layout.vector(norm.weight), f"{name}_shift": layout.vector(norm.bias)}


def _encoder(
    stepper: Stepper, network: FactoredRecurrentActorCritic, layout: _Layout
) -> tuple[list[list[int]], dict[str, int], Array]:
    own: Any = stepper.encoder
    linear, offsets = own.base[0], _norm(layout, "base", own.base[1]) | {"slot_encodings": 0}
    if not isinstance(own, FlatEncoder):
        offsets |= _norm(layout, "slot", own.slot_norm) | {"blueprint": layout.vector(own.blueprint)}
        matrices = [layout.matrix(linear.weight, linear.bias), layout.matrix(own.weight, None)]
        return matrices, offsets, _statistics(own.mean, own.scale, own.clip)
    size, slots = network.spaces.obs_size, network.spaces.slots
    if slots:
        by_slot = linear.weight[:, size:].unflatten(1, (slots, -1))  # [encoder, S, embedding]
        read = torch.einsum("ose,be->sbo", by_slot, own.blueprint.weight)
        offsets |= {"blueprint": layout.vector(read), "slot_encodings": layout.vector(own.slot.weight)}
    matrices = [layout.matrix(linear.weight[:, :size], linear.bias), _NONE]
    return matrices, offsets, _statistics(own.normalizer.mean, own.normalizer.scale(), own.normalizer.clip)


def _statistics(mean: Tensor, scale: Tensor, clip: float) -> Array:
    return np.concatenate([mean.numpy(), scale.numpy(), [clip]])


def _core(stepper: Stepper, layout: _Layout) -> tuple[list[list[int]], list[list[int]]]:
    """Return the layers of the core, and the input and read projections of its memory."""
    own: Any = stepper.core
    layers = stepper.config.num_layers
    if stepper.config.core == "feedforward":
        return [layout.matrix(own.layers[2 * k].weight, own.layers[2 * k].bias) for k in range(layers)], [_NONE, _NONE]
    cells = [layout.matrix(getattr(own, f"weight{k}"), getattr(own, f"bias{k}")) for k in range(layers)]
    if own.memory is None:
        return cells, [_NONE, _NONE]
    inputs, read = own.memory.inputs, own.memory.read
    return cells, [layout.matrix(inputs.weight, inputs.bias), layout.matrix(read.weight, None)]


def _heads(
    stepper: Stepper, network: FactoredRecurrentActorCritic, layout: _Layout
) -> tuple[list[list[int]], list[list[int]], dict[str, int]]:
    """Return the matrices from TRUNK to REST_SLOT, the last layers of the rest heads, and offsets."""
    own, heads = stepper.heads, network.heads
    offsets = {"context": 0, "pointer": 0}
    outputs: Any = [heads.op, network.critic, *heads.rest.values()]
    op, critic, *last = (layout.matrix(m[2].weight, m[2].bias) for m in outputs)
    pointer = rest_slot = _NONE
    if own.has_slots:
        pointer = layout.matrix(own.pointer_slot, None)
        offsets["pointer"] = layout.vector(torch.cat([own.pointer.weight.flatten(), own.pointer.bias]))
    if own.conditioned:
        rest_slot = layout.matrix(own.rest_slot, None)
        offsets["context"] = layout.vector(own.context)
    trunk = layout.matrix(own.trunk_weight, own.trunk_bias)
    return [trunk, op, critic, pointer, rest_slot], last, offsets
