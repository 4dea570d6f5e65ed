"""Further programs for `device_programs`: whole runs, growth in a user's loop, serving, and waits for the device.

Each takes the device to run on.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from actors.config import ActingConfig, ActorsConfig, EnvConfig, PolicyConfig
from actors.env import seed_fleet
from actors.env.env import SeedTrainingEnv
from actors.env.gym.fleet import GymFleet
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked import cuda_graph
from actors.env.stacked.cuda_graph import CapturedStep, Step, StepResult
from actors.env.stacked.networks import TorchNetworks
from actors.policy.acting.exported import example_inputs
from actors.policy.acting.programs import ActingPolicy, TracedPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.rollout.stream import EpisodeStream
from actors.rollout.wave import Provenance
from actors.serving.client.blocking import PolicyClient
from actors.serving.server import server
from actors.serving.server.models import ModelVersions, ServedRule
from actors.types.episode import Episode
from benchmarks.learning.in_process import Run
from learner import train as learner_module
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.env.gym_envs import Mixed
from tests.support.growth import columns, growing
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave
from tests.support.serving.servers import serving, step_inputs, weights

CPU = torch.device("cpu")
SEEDS = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate((5, 3, 9, 4))]
SCRIPT = [(1, 1), (5, 1), (1, 3), (5, 3), (1, 2), (5, 1), (5, 2), (5, 3)]
"""(op, slot): germinate, train and blend, in two slots of the stream and in one for columns."""


def same(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    a, b = (np.asarray(t.detach().cpu() if isinstance(t, Tensor) else t) for t in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


class Crossings(TorchDispatchMode):
    """Notes the operators for which the host waits: values that it reads, and blocking copies between devices."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, given = func.overloadpacket.__name__, [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        kinds = {t.device.type for t in (*given, *tree_leaves(out)) if isinstance(t, Tensor)}
        blocking = not (kwargs or {}).get("non_blocking", False) and not (name == "copy_" and True in args[2:])
        if kinds != {"cpu"} and (name in self.READS or (name in ("_to_copy", "copy_") and len(kinds) > 1 and blocking)):
            self.seen.append(f"{name} {[list(t.shape) for t in given]}")
        return out


def update_options(device: torch.device) -> None:
    """The other objectives, with TF32 allowed, and bf16, whose rounding differs between devices."""
    given: list[dict[str, Any]] = [
        {"objective": "decoupled", "ratio": "joint", "tf32": True},
        {"policy_denominator": "head_steps", "chunk_length": 3},
    ]
    if device.type == "cuda":  # autocast is for real devices alone
        given.append({"chunk_length": 3, "burn_in": 2, "amp": "bf16"})
    for options in given:
        config = LearnerConfig(**({"state_stride": 1, "target_kl": 1e9, "gamma": 0.9, "minibatches": 2} | options))
        batch = make_batch(toy_wave(toy_network(), SEEDS), SPACES, config.chunk_length, config.burn_in)

        def updated(to: torch.device, config: LearnerConfig = config, batch: Any = batch) -> dict[str, float]:
            network = toy_network().to(to)
            return PPOUpdate(network, make_optimizer(network, 1e-3, 0.0), config)(batch, update=0, version=0)

        ours, theirs = updated(device), updated(CPU)
        assert ours.keys() == theirs.keys()
        rounded = device.type == "cuda" and (config.amp == "bf16" or config.tf32)
        for name in ("loss_policy", "loss_value", "ratio_error") if rounded else theirs:
            same(ours[name], theirs[name], 0.05 if rounded else 1e-4)


def update_without_waiting(device: torch.device) -> None:
    """From the plan of the minibatches to the metrics of all, an update neither reads a value nor copies one over."""
    config = LearnerConfig(state_stride=1, target_kl=10.0, minibatches=3, update_epochs=2, chunk_length=3, burn_in=2)
    network = toy_network().to(device)
    ppo = PPOUpdate(network, make_optimizer(network, 1e-3, 0.0), config)
    ppo.reads_flags = False
    optimize, plan, mode = ppo._optimize, ppo._minibatches, Crossings()

    def planned(*arguments: Any) -> Any:
        found = plan(*arguments)
        mode.__enter__()
        return found

    def loop(*arguments: Any) -> Any:
        try:
            return optimize(*arguments)
        finally:
            mode.__exit__(None, None, None)

    ppo._minibatches, ppo._optimize = planned, loop  # type: ignore[method-assign]
    batch = make_batch(toy_wave(toy_network(), SEEDS), SPACES, config.chunk_length, config.burn_in)
    ppo(batch, update=0, version=0)
    assert mode.seen == [], mode.seen


def continuous(device: torch.device) -> None:
    """Acting and an update with an action that is partly continuous."""

    def learned(to: torch.device) -> tuple[list[Episode], dict[str, float]]:
        seeds, names = itertools.count(3), itertools.count()
        envs = SyncVectorEnv([Mixed] * 2, autoreset_mode=AutoresetMode.DISABLED)
        fleet = GymFleet("mixed", envs, lambda row: next(seeds))
        torch.manual_seed(0)
        network = FactoredRecurrentActorCritic(fleet.spaces, PolicyConfig(hidden_size=12)).to(to)
        policy, source = ActingPolicy(network), Provenance(0, 1, 1, run_seed=5)
        stream = EpisodeStream(fleet, policy, 5, 8)
        episodes = [e for _ in range(20) for e in stream.advance(policy, source, lambda: f"r/a/0/{next(names)}")]
        config = LearnerConfig(state_stride=1, target_kl=1e9, gamma=0.9)
        ppo = PPOUpdate(network, make_optimizer(network, 1e-3, 0.0), config)
        return episodes, ppo(make_batch(episodes, fleet.spaces), update=0, version=0)

    (ours, metrics), (theirs, expected) = learned(device), learned(CPU)
    assert len(ours) > 1
    for a, b in zip(ours, theirs, strict=True):
        same(a.log_probs, b.log_probs)
        same(a.rewards, b.rewards)
    for name, value in expected.items():
        same(metrics[name], value)


def whole_run(device: torch.device) -> None:
    """Fleet and learner on the device, weights back to an actor on the CPU, checkpoints, and a restart from one."""

    def trained(to: torch.device) -> list[dict[str, float]]:
        env = EnvConfig(tasks=("spirals",), horizon_epochs=3, inner_steps=2, backend="torch")
        acting = ActingConfig(env=env, actors=ActorsConfig(count=1, envs_per_actor=3))
        history: list[dict[str, float]] = []
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(seed_fleet, "_device", lambda config: to),
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
        env = SeedTrainingEnv(config, 0, dtype=torch.float64, device=to)
        seen = [env.reset(seed=1)[0]["obs"]]
        for op, slot in SCRIPT[:4]:
            obs, reward, *_ = env.step(np.array([op, slot, 7 if slot == 3 else 2, 0, 2, 1]))
            seen += [obs["obs"], reward]
        assert not env.illegal_actions
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
        with patch.object(seed_fleet, "_device", lambda config: to):
            fleet = SeedTrainingFleet(config, 3, 0, torch.float64)
        assert isinstance(fleet.networks, TorchNetworks)
        fleet.networks.settings = replace(fleet.networks.settings, cuda_graph=graph)
        steps = [fleet.reset(range(3))]
        for op, slot in SCRIPT:
            actions = [[op, slot, 7 + e if slot == 3 else e + 2, 0 if slot == 3 else e, 2, 1] for e in range(3)]
            steps.append(fleet.step(np.array(actions)))
            assert not fleet.illegal
        return steps

    for task in ("spirals", "gratings"):
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


def served_versions(device: torch.device) -> None:
    """Versions of served weights that come and go: the programs of one that is no longer used get newer weights."""

    def answers(to: torch.device) -> list[Any]:
        models, found = ModelVersions(weights(1, 1), to, max_versions=2), []
        for version in range(2, 5):
            models.adopt(models.build(weights(version, version)))
            programs = models.newest.programs(SPACES)
            assert isinstance(programs, TracedPolicy)
            inputs = [t.to(to) for t in example_inputs(toy_network(), 2)]
            found += programs.greedy(*inputs[:9])
        return found

    for ours, theirs in zip(answers(device), answers(CPU), strict=True):
        same(ours, theirs)


def exported_session(device: torch.device) -> None:
    """A session whose state is exported, and another that continues from it."""

    def answers(to: torch.device) -> list[Any]:
        found, state = [], b""
        with patch.object(server, "_device", lambda name: to), serving() as running:
            for step in range(2):
                with PolicyClient(running.address) as client:
                    session = client.open(SPACES, seed=7, state=state)
                    found.append(session.step(*step_inputs(3, step), False))
                    state = session.exported
        return found

    for ours, theirs in zip(answers(device), answers(CPU), strict=True):
        same(ours.action, theirs.action)
        same(ours.log_probs, theirs.log_probs)


def rule(device: torch.device) -> None:
    """A rule that is served instead of weights; what it remembers of a model stays in the state table."""

    def answers(to: torch.device) -> list[Any]:
        models = ModelVersions(ServedRule("fixed-column:double@1"), to, max_versions=2)
        network = FactoredRecurrentActorCritic(models.spaces, PolicyConfig(hidden_size=4))
        inputs = [t.to(to) for t in example_inputs(network, 2)[:5]]
        program, state, found = models.newest.programs(models.spaces), PolicyState.zeros(models.state_sizes, 2, to), []
        for _ in range(3):
            *chosen, h, c, cells, usage = program.greedy(*inputs, *state)
            state = PolicyState(h, c, cells, usage)
            found += [*chosen, *state]
        assert {t.device.type for t in found} == {to.type}
        return found

    for ours, theirs in zip(answers(device), answers(CPU), strict=True):
        same(ours, theirs)


MORE_PROGRAMS: tuple[Callable[[torch.device], None], ...] = (
    update_options, update_without_waiting, continuous, growth, served_versions, rule,
)  # fmt: skip
LONG_PROGRAMS: tuple[Callable[[torch.device], None], ...] = (whole_run, loop, captured_steps, exported_session)
"""Those that take longer."""
