"""`tamiyo rollout`: what it prints is the episode that the policy plays, at any number of slots."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from actors.config import EnvConfig, PolicyConfig
from actors.env.seed_fleet import make_fleet
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.rollout import wave as rollout
from actors.rules.names import rule_policy
from actors.slots.spaces import seed_spaces
from deploy.commands.rollout import show_rollout
from learner.ppo.optimizer import make_optimizer
from learner.run.checkpoint import LearnerProgress, load_network, save_checkpoint
from tests.support.learning.toy import toy_network

SMALL = PolicyConfig(hidden_size=12, encoder_size=10, head_size=8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("run")
    network = FactoredRecurrentActorCritic(seed_spaces(7), SMALL)
    save_checkpoint(folder, network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(), (), 8, 1)
    (folder / "config.yaml").write_text("env: {horizon_epochs: 6, inner_steps: 2, tasks: [moons]}\nrun: {seed: 5}\n")
    return folder


def printed(policy: Path | str, seed: int, slots: int | None = None, sampled: bool = True, **more: Any) -> list[str]:
    text = io.StringIO()
    shown = {"seed": seed, "slots": slots, "sampled": sampled, "console": Console(file=text, width=60)}
    assert show_rollout(str(policy), **shown, **more) == 0
    return text.getvalue().splitlines()


@pytest.mark.parametrize("slots", [1, 3, 4])
def test_it_prints_the_episode_that_the_policy_plays(checkpoint: Path, slots: int) -> None:
    """Against the same episode played here, by the run's own settings."""
    policy = load_network(checkpoint, slots + 2)
    fleet = make_fleet(EnvConfig(horizon_epochs=6, inner_steps=2, tasks=("moons",), slots=slots), 1, 5)
    source = rollout.Provenance(0, 0, 1, run_seed=5)
    (episode,) = rollout.run_wave(fleet, policy, [2], source)
    head, columns, *rows, _, _ = printed(checkpoint, 2, slots)
    assert f"J {episode.telemetry['objective']:+.2f}" in head
    assert "moons" in head
    told = episode.telemetry
    assert f"host width {told['host_width']:.0f}, price {told['points_per_doubling']:.2g}" in head
    assert f"doublings {told['doublings']:.2f}, of compute {told['compute_doublings']:.2f}" in head
    lanes = [f"slot {s}" for s in range(slots)] + [f"column {s}" for s in range(slots, slots + 2)]
    assert " ".join(columns.split()) == " ".join(["epoch accuracy decision", *lanes, "doublings compute"])
    assert len(rows) == len(episode)
    ops = policy.spaces.action.heads[0].choices
    assert rows[-1].split()[-2:] == [f"{told['doublings']:.2f}", f"{told['compute_doublings']:.2f}"]
    for row, action in zip(rows, episode.actions, strict=True):
        assert (ops[0] if action[0] == 0 else f"{ops[action[0]]} {lanes[action[1]]}") in row
    assert len({ops[a] for a in episode.actions[:, 0]}) > 1


def test_it_prints_contributions_and_gradient_health() -> None:
    fleet = make_fleet(EnvConfig(tasks=("moons",)), 1, 0)
    policy = rule_policy("fixed-column:same@1", fleet.spaces)
    rollout.run_wave(fleet, policy, [2], rollout.Provenance(0, 0, 1, run_seed=0), deterministic=True)
    episode = fleet.timelines()[0]
    lane = next(s for s, names in enumerate(episode.blueprints) if any(names))
    _, _, *rows, caption, _ = printed("fixed-column:same@1", 2, task="moons", sampled=False)
    assert "contribution" in caption
    told = list(zip(rows, episode.contributions[lane], episode.gradient_health[lane], strict=True))
    both = [(row, f" {points:+.1f} {health:.0%}") for row, points, health in told if None not in (points, health)]
    assert len(both) > 1
    assert all(said in row for row, said in both)


def test_sampled_and_greedy_differ_and_each_repeats_itself(checkpoint: Path) -> None:
    sampled, greedy = printed(checkpoint, 3), printed(checkpoint, 3, sampled=False)
    assert sampled == printed(checkpoint, 3)
    assert greedy == printed(checkpoint, 3, sampled=False)
    assert sampled[2:] != greedy[2:]


def test_a_policy_of_another_environment_is_refused(tmp_path: Path) -> None:
    network = toy_network()
    save_checkpoint(tmp_path, network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(), (), 1, 1)
    with pytest.raises(UserError, match="was not trained in the seed-training environment"):
        show_rollout(str(tmp_path))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture_is_the_same_each_time(checkpoint: Path, tmp_path: Path, suffix: str) -> None:
    first, second = (tmp_path / f"{n}{suffix}" for n in range(2))
    for path in (first, second):
        printed(checkpoint, 1, picture=path)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[:4] == {".png": b"\x89PNG", ".svg": b"<?xm"}[suffix]


def test_a_rule_is_played_in_the_host_that_is_asked_for() -> None:
    asked = {"task": "moons", "width": 3, "price": 0.5, "compute_price": 0.25}
    head, columns, *rows, _, _ = printed("fixed-column:quad@2", 1, **asked)
    assert "moons" in head
    assert "host width 3, price 0.5 per doubling, 0.25 of compute" in head
    assert columns.split()[-6:] == ["column", "3", "column", "4", "doublings", "compute"]
    assert "GERMINATE column 3" in rows[2]
    assert "column_quad fossilized" in rows[-1]
