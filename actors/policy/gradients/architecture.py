"""What the kernels need of a network: its sizes, and its parameters in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor, nn

from actors.config import PolicyConfig
from actors.kernels.policy.gradients.sizes import NetShape
from actors.policy.cores.core import Feedforward, Recurrent
from actors.policy.encoder import FlatEncoder, SlotEncoder
from actors.policy.heads import FactoredHeads
from actors.types.spaces import Spaces

ParameterList = list[nn.Parameter | None]


class SequenceNetwork(Protocol):
    """The parts of `actors.policy.network.FactoredRecurrentActorCritic` that the kernels compute."""

    spaces: Spaces
    config: PolicyConfig
    floor_mass: float
    encoder: SlotEncoder | FlatEncoder
    core: Feedforward | Recurrent
    norm: nn.LayerNorm
    heads: FactoredHeads
    critic: nn.Sequential

    @property
    def counted(self) -> Tensor: ...

    @property
    def value_output(self) -> nn.Linear: ...


def sizes(network: SequenceNetwork) -> NetShape:
    """Return the sizes of a network."""
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
        floor=int(config.probability_floor > 0),
    )


def parameters_in_order(network: SequenceNetwork) -> ParameterList:
    """Return the parameters in the order of `actors.kernels.policy.gradients.sizes`, None for absent ones."""
    encoder, heads = network.encoder, network.heads
    slotted, slots = isinstance(encoder, SlotEncoder), network.spaces.slots > 0
    core = network.core
    return [
        *_of(encoder.base, 4),
        *_of(encoder.slot if slotted else None, 4),
        *_of(network.norm, 2),
        *_of(heads.op, 4),
        *_of(network.critic, 4),
        *_of(heads.pointer if heads.has_slots else None, 4),
        *_of(encoder.blueprint if slots else None, 1),
        *_of(encoder.slot if slots and not slotted else None, 1),
        *_of(heads.op_embedding if heads.conditioned else None, 1),
        *(p for head in heads.rest.values() for p in head.parameters()),
        *(core.lstm if isinstance(core, Recurrent) else core).parameters(),
    ]


def _of(module: nn.Module | None, count: int) -> Iterable[nn.Parameter | None]:
    return [None] * count if module is None else list(module.parameters())
