"""`tamiyo export CHECKPOINT OUT`: write a policy as a torch.export program that describes its inputs and outputs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch

from actors.errors import UserError
from actors.policy.acting.exported import INPUTS, OUTPUTS, example_inputs, export_step
from actors.policy.publish import architecture_hash
from learner.run.checkpoint import load_policy


def export_policy(checkpoint: Path, out: Path, slots: int | None) -> int:
    """Write the policy to `out` (.pt2), which `torch.export.load` reads; `tamiyo.json` inside describes its tensors.

    Raises `UserError` for an impossible `slots` or `out`.
    """
    if slots is not None and not 1 <= slots <= 8:
        raise UserError(f"--slots is {slots}: a host has 1 to 8 slots")
    if out.suffix != ".pt2":
        raise UserError(f"{out} does not end in .pt2: give a name such as policy.pt2")
    if not out.parent.is_dir():
        raise UserError(f"folder {out.parent} does not exist: create it, or write to another folder")
    network = load_policy(checkpoint, slots)
    description = {
        "inputs": {n: _shape(t) for n, t in zip(INPUTS, example_inputs(network, 1), strict=True)},
        "outputs": OUTPUTS,
        "heads": {head.name: head.choices for head in network.spaces.action.heads},
        "spaces_hash": network.spaces.hash,
        "architecture_hash": architecture_hash(network.spaces, network.config),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nn.LSTM rebuilds its list of weights during tracing
        program = export_step(network)
    torch.export.save(program, out, extra_files={"tamiyo.json": json.dumps(description)})
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB, inputs {', '.join(INPUTS)}")
    return 0


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
