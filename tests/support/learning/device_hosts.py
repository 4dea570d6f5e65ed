"""Programs for `device_programs` that train hosts: fleets, the reference, whole runs, and models of users."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from actors.config import ActingConfig, ActorsConfig, EnvConfig
from actors.env import seed_fleet
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked import cuda_graph
from actors.env.stacked.cuda_graph import CapturedStep, Step, StepResult
from actors.env.stacked.networks import TorchNetworks
from benchmarks.learning.in_process import Run
from learner import train as learner_module
from learner.config import LearnerConfig
from tests.support.env.reference_env import ReferenceEnv
from tests.support.growth import columns, growing
from tests.support.learning.device_learning import CPU, Crossings, same

SCRIPT = [(1, 1), (5, 1), (1, 3), (5, 3), (1, 2), (5, 1), (5, 2), (5, 3)]
"""(op, slot): germinate, train and blend, in two slots of the stream and in one for columns."""


def whole_run(device: torch.device) -> None:
    """Fleet and learner on the device, weights back to an actor on the CPU, checkpoints, and a restart from one."""

    def trained(to: torch.device) -> list[dict[str, float]]:
        env = EnvConfig(tasks=("spirals",), horizon_epochs=3, inner_steps=2, backend="torch")
        acting = ActingConfig(env=env, actors=ActorsConfig(count=1, envs_per_actor=3))
        history: list[dict[str, float]] = []
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(seed_fleet, "_device", lambda *_: to),
            patch.object(learner_module, "pick_device", lambda wanted: to),
        ):
            for updates in (1, 2):
                run = Run(acting, LearnerConfig(updates=updates, batch_episodes=3, target_kl=1e9), Path(folder), seed=0)
                run.train(10**9)
                assert {p.device.type for p in run.learner.network.parameters()} == {to.type}
                moments = [t for own in run.learner.state.optimizer.state.values() for t in own.values()]
                assert {t.device.type for t in moments} == {to.type}
                history += run.history
        return history

    ours, theirs = trained(device), trained(CPU)
    assert len(ours) == len(theirs) == 2
    for mine, other in zip(ours, theirs, strict=True):
        # Rounding of a GPU can change which class is the most likely, and with it what the policy sees.
        for name in ("loss_policy", "loss_value", "return_mean", "kl") if device.type != "cuda" else ():
            same(mine[name], other[name], 1e-3)
        assert mine["ratio_error"] < mine["ratio_error_limit"]


def loop(device: torch.device) -> None:
    """The reference environment, which the benchmarks of a GPU compare with."""

    def play(to: torch.device, task: str) -> list[Any]:
        config = EnvConfig(tasks=(task,), host_width=4, horizon_epochs=5, inner_steps=2, batch_size=8)
        env = ReferenceEnv(config, 0, dtype=torch.float64, device=to)
        seen = [env.reset(seed=1)[0]["obs"]]
        for op, slot in SCRIPT[:4]:
            obs, reward, *_ = env.step(np.array([op, slot, 7 if slot == 3 else 2, 0, 2, 1]))
            seen += [obs["obs"], reward]
        assert not env.episode.illegal_actions
        return seen

    for task in ("spirals", "gratings"):
        for ours, theirs in zip(play(device, task), play(CPU, task), strict=True):
            same(ours, theirs)


class Recorded(CapturedStep):
    """A captured step without CUDA: it runs again at each replay, and must not touch the host."""

    def __init__(self, step: Step, x: Tensor, y: Tensor) -> None:
        self.step = step

    def __call__(self, x: Tensor, y: Tensor) -> StepResult:
        with Crossings() as mode:
            out = self.step(x, y, True)
        assert mode.seen == [], mode.seen
        return out


@contextmanager
def without_cuda_graphs(device: torch.device) -> Iterator[None]:
    if device.type == "cuda":
        yield
        return
    with (
        patch.object(cuda_graph, "CapturedStep", Recorded),
        patch.object(cuda_graph, "_warm_up", lambda step, x, y: step(x, y, True)),
    ):
        yield


def captured_steps(device: torch.device) -> None:
    """An epoch whose minibatches are replayed as a graph; with every blend and kind of slot."""

    def play(to: torch.device, task: str, graph: bool) -> list[Any]:
        config = EnvConfig(
            tasks=(task,), host_width=4, horizon_epochs=len(SCRIPT), inner_steps=3, budget_ratio=20.0, batch_size=8,
            contribution_every=len(SCRIPT), backend="torch",
        )  # fmt: skip
        with patch.object(seed_fleet, "_device", lambda *_: to):
            fleet = SeedTrainingFleet(config, 3, 0, torch.float64)
        assert isinstance(fleet.networks, TorchNetworks)
        fleet.networks.settings = replace(fleet.networks.settings, cuda_graph=graph)
        steps = [fleet.reset(range(3))]
        for op, slot in SCRIPT:
            actions = [[op, slot, 7 + e if slot == 3 else e + 2, 0 if slot == 3 else e, 2, 1] for e in range(3)]
            steps.append(fleet.step(np.array(actions)))
            assert not fleet.illegal
        return steps

    for task in ("spirals", "signals", "gratings"):
        with without_cuda_graphs(device):
            graphs = play(device, task, graph=True)
        for ours, theirs in zip(graphs, play(CPU, task, graph=False), strict=True):
            same(ours.obs, theirs.obs)
            same(ours.rewards, theirs.rewards)


def growth(device: torch.device) -> None:
    """Seeds and columns in the loop of a user, whose model and data are on the device."""

    def losses(run: growing.Run, to: torch.device) -> list[float]:
        run.x_y = tuple(t.to(to) for t in run.x_y)  # type: ignore[assignment]
        run.epochs(5)
        assert {t.device.type for t in (*run.model.parameters(), *run.model.buffers())} == {to.type}
        return run.losses

    def seeds(to: torch.device) -> list[float]:
        script = growing.Script([*growing.GROWN, growing.fossilize()])
        return losses(growing.Run(growing.mlp().to(to), script), to)

    def convolution(to: torch.device) -> list[float]:
        model, script = growing.ConvNet().to(to).eval(), growing.Script(growing.GROWN)
        model.block[1] = torch.nn.Identity()  # dropout differs between devices
        return losses(growing.Run(model, script, ["stem"], (1, 5, 5)), to)

    def column(to: torch.device) -> list[float]:
        torch.manual_seed(0)
        own = columns.Column(lambda scale: growing.mlp(width=int(12 * scale)))
        script = growing.Script([columns.grow(), growing.advance(), growing.advance()])
        return losses(growing.Run(growing.mlp().to(to), script, [], columns=own), to)

    for make in (seeds, convolution, column):
        same(make(device), make(CPU), 1e-3 if device.type != "cuda" else 0.05)


LONG_HOSTS: tuple[Callable[[torch.device], None], ...] = (growth, whole_run, loop, captured_steps)
"""Those that take longer."""
