"""The controller with DistributedDataParallel: two ranks grow the same seeds and the same columns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.growth.growing import GROWN, Run, Script, mlp

ROOT = Path(__file__).parents[3]
RANK = """
import gc, json, os, sys
import torch, torch.distributed as dist
from dataclasses import asdict
from torch.nn.parallel import DistributedDataParallel
from actors.growth.columns.column import Column
from tests.support.growth.columns import MODELS, REPLACED
from tests.support.growth.growing import GROWN, ConvNet, Run, Script, UNREACHABLE, advance, germinate, mlp
rendezvous = sys.argv[1]
torch.set_num_threads(1)
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])  # what it imports, both ranks share
rank = int(os.fork() == 0)
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)


def play(model, script, slots, shape, epochs, **options):
    own = Run(model, Script(script if rank == 0 else [RuntimeError("asked")] * 9), slots, shape,
              wrap=DistributedDataParallel, evaluate=lambda: own.validate()[1], **options)
    x, y = own.x_y
    own.x_y = x[rank::2], y[rank::2]  # each has rows of its own
    own.epochs(epochs)
    return {
        "stages": [s.name for s in own.grower.stages.values()],
        "log": [asdict(d) for d in own.grower.log],
        "weights": [p.double().sum().item() for p in own.model.parameters()],
        "names": [n for n, p in own.model.named_parameters()],
        "statistics": [b.double().sum().item() for n, b in own.model.named_buffers() if "running" in n],
        "costs": [(shape.flops, shape.costs) for shape in own.grower._growth.slot_shapes],
    }


class Outer(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.scale = net, torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * self.net(x)


seeds = [*GROWN, germinate(1, 2), UNREACHABLE, advance(1)]
told = {"seeds": play(ConvNet(), seeds, ["stem", "block"], (1, 5, 4), 8)}
make, shape = MODELS["resnet"]
torch.manual_seed(0)
told["replaced"] = play(Outer(make(1.0)), REPLACED, [], shape, 9, columns=Column(make, model="net"))
same = Run(mlp(), Script(GROWN if rank == 0 else []), ["3"], wrap=DistributedDataParallel).epochs(4)
told["norm"] = same.grower._growth.slots[0].gradient_norm
with open(f"{rendezvous}.{rank}", "w") as file:
    json.dump(told, file)
dist.barrier()  # neither leaves while the other still talks to it
del same
gc.collect()  # what holds the group goes before it does, not while the interpreter ends
dist.destroy_process_group()
if rank == 0:
    sys.exit(os.wait()[1])
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes tells of its runs."""
    meeting = tmp_path_factory.getbasetemp() / "meeting"
    command = [sys.executable, "-c", RANK, str(meeting)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(meeting.with_suffix(f".{rank}").read_text()) for rank in range(2)]


def test_ranks_apply_the_decision_of_the_first(ranks: list[dict[str, Any]]) -> None:
    first, second = (dict(rank["seeds"]) for rank in ranks)
    first.pop("statistics"), second.pop("statistics")  # shared only at the next forward pass
    assert first == second
    ops = [d["op"] for d in first["log"]]
    assert ops == ["GERMINATE", "ADVANCE", "ADVANCE", "GERMINATE", "WAIT", "ADVANCE", "WAIT", "WAIT"]
    assert "no server" in first["log"][4]["reason"]
    assert first["stages"] == ["HOLDING", "TRAINING"]
    assert sum("tamiyo" in name for name in first["names"]) == 8
    assert first["log"][-1]["contributions"][0] is not None


def test_gradient_norms_are_those_of_means_not_of_sums(ranks: list[dict[str, Any]]) -> None:
    alone = Run(mlp(), Script(GROWN), ["3"]).epochs(4)
    assert ranks[0]["norm"] == ranks[1]["norm"]
    assert ranks[0]["norm"] == pytest.approx(alone.grower._growth.slots[0].gradient_norm, rel=1e-4)


def test_ranks_grow_columns_of_which_one_replaces_the_model(ranks: list[dict[str, Any]]) -> None:
    """DDP would wait for the gradients of a host that is gone; they are averaged all the same. BatchNorm's statistics
    are those of the first rank, as DDP shares them."""
    first, second = (dict(rank["replaced"]) for rank in ranks)
    assert first["stages"] == ["FOSSILIZED", "HOLDING"]
    assert first["names"][:2] == ["module.scale", "module.net.stem.weight"]
    assert first["weights"][0] != 1.0
    own = first.pop("statistics"), second.pop("statistics")
    assert first == second
    assert len(own[0]) == 8
    assert own[0][4:] == own[1][4:]  # the model's own are shared only at its next forward pass
