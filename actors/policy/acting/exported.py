"""The policy's step as a `torch.export` program, with the recurrent state as inputs and outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from actors.policy.network import FactoredRecurrentActorCritic, MaskTensors
from actors.policy.state import PolicyState

INPUTS = (
    "obs",  # [N, D] float32, not normalized
    "blueprint_indices",  # [N, S] int64, -1 = empty
    "op_mask",  # [N, ops] bool
    "slot_mask",  # [N, ops, S] bool; empty where the action space has no slots
    "rest_mask",  # [N, ops, S, R] bool, or [N, R]
    "h",  # [layers, N, hidden]; this and the next three are outputs of the last call, zeros at first
    "c",
    "cells",
    "usage",
    "reset",  # [N] bool, True where an episode begins; the state is zeroed there
    "noise",  # [N, heads] float64, uniform in [0, 1)
    "deterministic",  # [] bool: take the most likely choice of each head and ignore the noise
)
OUTPUTS = ("actions", "log_probs", "values", "baseline_values", "h", "c", "cells", "usage")
BATCH_AXES = {  # the axis of N; `deterministic` has none
    **dict.fromkeys(("obs", "blueprint_indices", "op_mask", "slot_mask", "rest_mask", "reset", "noise"), 0),
    **dict.fromkeys(PolicyState._fields, 1),
}


class ExportedStep(nn.Module):
    """`FactoredRecurrentActorCritic.step` with plain tensors in the order of INPUTS and OUTPUTS."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        obs: Tensor,
        blueprint_indices: Tensor,
        op_mask: Tensor,
        slot_mask: Tensor,
        rest_mask: Tensor,
        h: Tensor,
        c: Tensor,
        cells: Tensor,
        usage: Tensor,
        reset: Tensor,
        noise: Tensor,
        deterministic: Tensor,
    ) -> tuple[Tensor, ...]:
        state = PolicyState(h, c, cells, usage).reset_rows(reset)
        masks = MaskTensors(op_mask, slot_mask, rest_mask)
        step = self.network.step(obs, blueprint_indices, masks, state, noise, deterministic)
        return step.actions, step.log_probs, step.values, step.baseline_values, *step.state


def export_step(network: FactoredRecurrentActorCritic) -> torch.export.ExportedProgram:
    """Export the step of a network on the CPU, for any number N of environments."""
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    examples = dict(zip(INPUTS, example_inputs(network, 2), strict=True))
    shapes = {}
    for name, tensor in examples.items():
        axis = BATCH_AXES.get(name)
        shapes[name] = {} if axis is None or tensor.dim() <= axis or not tensor.shape[axis] else {axis: batch}
    with torch.no_grad():
        return torch.export.export(ExportedStep(network).eval(), tuple(examples.values()), dynamic_shapes=shapes)


def example_inputs(network: FactoredRecurrentActorCritic, batch: int) -> tuple[Tensor, ...]:
    """Return inputs of the right shapes and types: everything legal, every episode at its start."""
    spaces, spec = network.spaces, network.spaces.action
    slotted = (batch, spec.num_ops, spec.num_slots)
    slot_mask = torch.ones(slotted if spec.conditioned else 0, dtype=torch.bool)
    return (
        torch.zeros(batch, spaces.obs_size),
        torch.full((batch, spaces.slots), -1, dtype=torch.long),
        torch.ones(batch, spec.num_ops, dtype=torch.bool),
        slot_mask,
        torch.ones(*(slotted if spec.conditioned else (batch,)), spec.rest_size, dtype=torch.bool),
        *network.initial_state(batch),
        torch.ones(batch, dtype=torch.bool),
        torch.full((batch, len(spec.heads)), 0.5, dtype=torch.float64),
        torch.tensor(True),
    )
