"""Programs for `device_programs` that train hosts: whole runs, and models of users."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

from actors.config import ActingConfig, ActorsConfig, EnvConfig
from actors.env import seed_fleet
from actors.transport.redis import connect
from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from learner import train as learner_module
from learner.config import LearnerConfig
from tests.support.growth import columns, growing
from tests.support.learning.device_learning import CPU, same
from tests.support.stores import own_server


def whole_run(device: torch.device) -> None:
    """Fleet and learner on the device, weights back to an actor on the CPU, checkpoints, and a restart from one."""
    env = EnvConfig(tasks=("spirals",), horizon_epochs=3, inner_steps=2, backend="torch")
    acting = ActingConfig(env=env, actors=ActorsConfig(count=1, envs_per_actor=3))
    torch.set_num_threads(1)

    def train(to: torch.device, folder: Path, updates: int, report: Callable[[dict[str, float]], None]) -> None:
        """A real actor and learner in turns: it acts whenever the learner waits for episodes."""
        url, namespace = own_server().url, uuid.uuid4().hex
        worker = RolloutWorker(WorkerSettings(acting, 0, "run", 0, url, namespace), max_busy_wait_s=0.0)
        transport, spaces = connect(url, acting.queue, namespace), worker.sampler.spaces

        def act() -> bool:
            while transport.ledger().queued == 0:
                worker.sample()
            return False

        config = LearnerConfig(updates=updates, batch_episodes=3, target_kl=1e9)
        learner = learner_module.Learner(config, acting.policy, spaces, transport, folder, seed=0, report=report)
        learner.run(act)
        assert {p.device.type for p in learner.network.parameters()} == {to.type}
        moments = [t for own in learner.state.optimizer.state.values() for t in own.values()]
        assert {t.device.type for t in moments} == {to.type}

    def history(to: torch.device) -> list[dict[str, float]]:
        found: list[dict[str, float]] = []
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(seed_fleet, "_device", lambda *_: to),
            patch.object(learner_module, "pick_device", lambda wanted: to),
        ):
            for updates in (1, 2):
                train(to, Path(folder), updates, found.append)
        return found

    ours, theirs = history(device), history(CPU)
    assert len(ours) == len(theirs) == 2
    for mine, other in zip(ours, theirs, strict=True):
        # Rounding of a GPU can change which class is the most likely, and with it what the policy sees.
        for name in ("loss_policy", "loss_value", "return_mean", "kl") if device.type != "cuda" else ():
            same(mine[name], other[name], 1e-3)
        assert mine["ratio_error"] < mine["ratio_error_limit"]


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


LONG_HOSTS: tuple[Callable[[torch.device], None], ...] = (growth, whole_run)
"""Those that take longer."""
