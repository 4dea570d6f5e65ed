"""`tamiyo export CHECKPOINT OUT`: write a policy as a torch.export program or an ONNX model that describes itself."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from actors.errors import UserError
from actors.policy.acting.exported import INPUTS, OUTPUTS, example_inputs, export_step
from actors.policy.acting.onnx import onnx_step
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import architecture_hash
from actors.policy.saved import find_policy
from learner.run.checkpoint import load_network


def export_policy(checkpoint: Path, out: Path, slots: int | None, latest: bool = False) -> int:
    """Write the policy, of a run folder the best one unless `latest`, to `out`: a `torch.export` program (.pt2) or an
    ONNX model (.onnx).

    The file describes its tensors: `tamiyo.json` among the extra files of a program, `tamiyo` in a model's metadata.
    Raises `UserError` for an impossible `slots` or `out`, and for what ONNX cannot express.
    """
    if slots is not None and not 1 <= slots <= 8:
        raise UserError(f"--slots is {slots}: a host has 1 to 8 slots")
    if out.suffix not in (".pt2", ".onnx"):
        raise UserError(f"{out} does not end in .pt2 or .onnx: give a name such as policy.pt2 or policy.onnx")
    if not out.parent.is_dir():
        raise UserError(f"folder {out.parent} does not exist: create it, or write to another folder")
    network = load_network(find_policy(checkpoint, latest), slots)
    write = _write_onnx if out.suffix == ".onnx" else _write_program
    made = write(network, out)
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB, {made}")
    return 0


def _write_program(network: FactoredRecurrentActorCritic, out: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nn.LSTM rebuilds its list of weights during tracing
        program = export_step(network)
    description = json.dumps(_description(network, INPUTS, OUTPUTS))
    torch.export.save(program, out, extra_files={"tamiyo.json": description})
    return f"inputs {', '.join(INPUTS)}"


def _write_onnx(network: FactoredRecurrentActorCritic, out: Path) -> str:
    step = onnx_step(network)
    step.program.model.metadata_props["tamiyo"] = json.dumps(_description(network, step.inputs, step.outputs))
    step.program.save(out)
    return f"ONNX opset {step.opset}, inputs {', '.join(step.inputs)}"


def _description(
    network: FactoredRecurrentActorCritic, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> dict[str, Any]:
    examples = dict(zip(INPUTS, example_inputs(network, 1), strict=True))
    examples = {name: examples[name] for name in inputs}
    return {
        "inputs": {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in examples.items()},
        "outputs": outputs,
        "heads": {head.name: head.choices for head in network.spaces.action.heads},
        "spaces_hash": network.spaces.hash,
        "architecture_hash": architecture_hash(network.spaces, network.config),
    }
