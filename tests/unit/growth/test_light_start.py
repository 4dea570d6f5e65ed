"""A controller with a local policy decides without gRPC, Numba, or the environment."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import torch
import tamiyo

def net(scale):
    width = int(16 * scale)
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))

for policy in ("trained", "fixed-column:double@3"):
    model = net(1)
    options = {"columns": tamiyo.Column(net), "horizon_epochs": 10, "num_classes": 3, "policy": policy}
    grower = tamiyo.GrowthController(model, [], torch.optim.Adam(model.parameters()), **options)
    decision = grower.step(loss=1.1, accuracy=0.3)
    assert not decision.reason, decision.reason
print(*(name for name in ("grpc", "numba", "actors.env", "ray", "redis") if name in sys.modules))
"""


def test_a_local_policy_needs_little() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr
