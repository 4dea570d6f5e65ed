"""How episodes are cut into chunks does not change outputs; `test_parity` shows that wrong states would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.policy.cores.core import Feedforward
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.episode import Episode
from learner.ppo.batch import make_batch
from learner.ppo.minibatch import minibatch
from tests.property.policy.test_sequences import by_cell
from tests.support.learning.batches import evaluate_batch
from tests.support.learning.toy import POLICIES, SPACES, toy_network, toy_seed, toy_wave

CHUNKS = (1, 3, 7, 9)
LENGTHS = (1, 3, 4, 7, 8, 9, 2)  # 1, L and L + 1 for every L above


def make(stride: int = 1, **options: Any) -> tuple[FactoredRecurrentActorCritic, list[Episode]]:
    network = toy_network(**options)
    seeds = [toy_seed(n, truncated=i % 2 == 1, salt=i) for i, n in enumerate(LENGTHS)]
    return network, toy_wave(network, seeds, state_stride=stride)


def outputs_by_cell(network: FactoredRecurrentActorCritic, episode: Episode) -> tuple[Tensor, Tensor]:
    """(core output `[T, hidden]`, denormalized values `[T]`) by the core's equations, one step at a time."""
    core, memory = network.core, SlowMemory(network)
    x = network.encoder(torch.from_numpy(episode.obs), torch.from_numpy(episode.blueprint_indices)).core_input
    if isinstance(core, Feedforward):
        x = core.layers(x)
    else:
        x = by_cell(core, x, torch.ones(1, len(x), dtype=torch.bool), network.initial_state(1), 1.0)
    cores = torch.stack([memory(row) for row in x])
    chosen = torch.from_numpy(episode.actions[:, :1]) * (network.config.critic == "q_op")
    values = network.critic(network.norm(cores)).gather(1, chosen)[:, 0]
    return cores, network.value_normalizer.denormalize(values)


class SlowMemory:
    """The external memory as lists of cells, in float64, with its rules spelt out one by one."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        self.network, config = network, network.config
        self.size = config.memory_size
        self.cells = [np.zeros(config.memory_size) for _ in range(config.memory_cells)]
        self.usage = [0.0] * config.memory_cells

    def __call__(self, out: Tensor) -> Tensor:
        memory = getattr(self.network.core, "memory", None)
        if memory is None:
            return out
        projected = (memory.inputs.weight @ out + memory.inputs.bias).detach().double().numpy()
        query, write, gate = projected[: self.size], projected[self.size : -1], 1 / (1 + np.exp(-projected[-1]))
        likeness = np.exp([query @ cell / self.size**0.5 for cell in self.cells])
        attention = likeness / likeness.sum()
        read = sum(a * cell for a, cell in zip(attention, self.cells, strict=True))
        self.usage = [0.95 * u + a for u, a in zip(self.usage, attention, strict=True)]
        least = min(range(len(self.cells)), key=lambda k: round(self.usage[k], 9))
        self.cells[least] = (1 - gate) * self.cells[least] + gate * np.tanh(write)
        self.usage[least] = (1 - gate) * self.usage[least] + gate
        return out + memory.read.weight @ torch.from_numpy(np.asarray(read)).float()


@torch.no_grad()
def check_forward(network: FactoredRecurrentActorCritic, episodes: list[Episode], chunk: int) -> None:
    out = evaluate_batch(network, make_batch(episodes, SPACES, chunk))
    expected = [outputs_by_cell(network, e) for e in episodes]
    cores, values = (torch.cat(parts) for parts in zip(*expected, strict=True))
    assert torch.allclose(out.hidden, cores, atol=2e-6)
    scale = float(network.value_normalizer.std)
    assert torch.allclose(network.value_normalizer.denormalize(out.values), values, atol=1e-5 * scale)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("options", POLICIES)
def test_outputs_do_not_depend_on_the_chunk_length(chunk: int, options: dict[str, str]) -> None:
    check_forward(*make(**options), chunk)


def test_a_stride_above_one_finds_the_right_states() -> None:
    network, episodes = make(stride=3)
    for chunk in (3, 6, 9):
        check_forward(network, episodes, chunk)
    for chunk, burn_in, said in ((4, 0, ""), (3, 4, "burn-in of 4 steps: ")):
        with pytest.raises(ValueError, match=f"{said}states are stored every 3 steps"):
            make_batch(episodes, SPACES, chunk, burn_in)


def test_a_minibatch_without_chunks_has_no_steps() -> None:
    """With more minibatches than chunks, some are empty."""
    network, episodes = make()
    batch = make_batch(episodes, SPACES, 3)
    steps = minibatch(batch, np.zeros(0, dtype=np.int64)).steps(batch)
    assert network.evaluate_steps(steps).log_probs.shape[0] == 0
