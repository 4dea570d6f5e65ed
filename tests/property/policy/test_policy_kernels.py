"""Kernels compute what the network computes: decisions and states, and for training in float64 with gradients; those
with one mistake in their source do not."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import actors
from actors.config import PolicyConfig
from actors.kernels.cache import has_feature
from actors.policy import kernels
from actors.policy.acting.policy import ActingPolicy
from actors.policy.cores.sequences import SequenceLayout, Steps
from actors.policy.network import ActOutput, Evaluation, FactoredRecurrentActorCritic, MaskTensors
from actors.policy.publish import to_weights
from actors.policy.state import PolicyState
from actors.slots.spaces import seed_spaces
from actors.types.actions import ActionMasks, ActionSpec, independent_spec
from actors.types.spaces import Spaces
from tests.support.learning.toy import SPACES, random_masks

FLAT = Spaces(independent_spec((4, 2, 5)), base_size=6, slot_size=0, slots=0, num_blueprints=0)
ONE = Spaces(independent_spec((3,)), base_size=6, slot_size=0, slots=0, num_blueprints=0)
KINDS: list[tuple[Spaces, dict[str, Any]]] = [
    (SPACES, {}),
    (SPACES, {"core": "feedforward", "num_layers": 2, "probability_floor": 0.0}),
    (SPACES, {"core": "lstm+memory", "num_layers": 2}),
    (SPACES, {"critic": "q_op", "bootstrap": "sampled", "popart": False}),
    (SPACES, {"heads": "independent", "probability_floor": 0.05}),
    (SPACES, {"encoder": "flat", "critic": "q_op"}),
    (SPACES, {"causal_masks": False}),
    (SPACES, {"blind": True}),
    (FLAT, {"encoder": "flat"}),
    (ONE, {"encoder": "flat", "core": "lstm+memory", "probability_floor": 0.0}),
]
SIZES = ("encoder_size", "hidden_size", "head_size", "blueprint_embedding")
WIDTHS = [dict(zip(SIZES, sizes, strict=True)) for sizes in ((61, 29, 13, 3), (5, 64, 1, 7), (127, 33, 50, 16))]
"""They fill the last panel of a product in part, or none of it, on processors with any width of vectors."""


def network(spaces: Spaces, options: dict[str, Any], seed: int) -> FactoredRecurrentActorCritic:
    """Build a network in which all weights and statistics differ from their initial values."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "encoder_size": 12, "head_size": 8, "memory_cells": 4, "memory_size": 6}
    made = FactoredRecurrentActorCritic(spaces, PolicyConfig(**(sizes | options))).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.5 * torch.randn_like(p))
        for name, b in made.named_buffers():
            if name.endswith(("mean", "variance", "std")) and not name.startswith("value_normalizer.mean"):
                b.copy_(b + torch.rand_like(b))
    return made


def masks_of(spec: ActionSpec, rng: np.random.Generator, count: int) -> ActionMasks:
    if spec.conditioned:
        return ActionMasks(*map(np.stack, zip(*(random_masks(rng, spec) for _ in range(count)), strict=True)))
    flat = rng.random((count, spec.flat_size)) < 0.5
    flat[:, [o + n - 1 for o, n in zip(spec.offsets, spec.sizes, strict=True)]] = True
    return ActionMasks.of_flat(spec, flat)


def trained_like(slots: int, seed: int, **options: Any) -> FactoredRecurrentActorCritic:
    """The default network with heads that have opinions, and with statistics of observations and returns."""
    torch.manual_seed(seed)
    made = FactoredRecurrentActorCritic(seed_spaces(slots, "tamiyo"), PolicyConfig(**options)).eval()
    with torch.no_grad():
        for head in (made.heads.op, made.heads.pointer, *made.heads.rest.values()):
            head[2].weight.mul_(100.0)
        for name, tensor in made.named_buffers():
            if name.endswith(("mean", "variance", "std")):
                tensor.add_(torch.rand_like(tensor))
    return made


class Inputs(NamedTuple):
    """What `act` takes, besides the state."""

    obs: NDArray[np.float32]
    blueprints: NDArray[np.int64]
    masks: ActionMasks
    noise: NDArray[np.float64]
    greedy: NDArray[np.bool_]

    def rows(self, index: Any) -> Inputs:
        masks = ActionMasks(*(None if m is None else m[index] for m in self.masks))
        return Inputs(self.obs[index], self.blueprints[index], masks, self.noise[index], self.greedy[index])


def random_inputs(spaces: Spaces, rng: np.random.Generator, count: int) -> Inputs:
    obs = 3.0 * rng.standard_normal((count, spaces.obs_size)).astype(np.float32)
    blueprints = rng.integers(-1, max(1, spaces.num_blueprints), (count, spaces.slots))
    noise = rng.random((count, len(spaces.action.heads)))
    return Inputs(obs, blueprints, masks_of(spaces.action, rng, count), noise, rng.random(count) < 0.3)


@torch.inference_mode()
def reference(made: FactoredRecurrentActorCritic, given: Inputs, state: PolicyState) -> tuple[ActOutput, PolicyState]:
    """The network's own step, in its precision."""
    legal, dtype = MaskTensors.from_masks(given.masks, torch.device("cpu")), made.norm.weight.dtype
    obs, blueprints, noise, greedy = (torch.from_numpy(a) for a in (given.obs, given.blueprints, *given[3:]))
    step = made.step(obs.to(dtype), blueprints, legal, state, noise, greedy)
    return made.decision(given.masks, *step[:4]), step.state


def greatest_error(ours: Any, expected: Any) -> float:
    """The largest error of numbers up to 1, or relative error of larger ones."""
    mine, other = (np.asarray(a, np.float64) for a in (ours, expected))
    return float((np.abs(mine - other) / np.maximum(1.0, np.abs(other))).max(initial=0.0))


def check_alike(made: FactoredRecurrentActorCritic, acting: ActingPolicy, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for count in (1, 7):
        ours = theirs = made.initial_state(count)
        for step in range(6):
            given = random_inputs(made.spaces, rng, count)
            decided, ours = acting.act(*given[:3], ours, given.noise, step % 3 == 0)
            expected, theirs = made.act(*given[:3], theirs, given.noise, step % 3 == 0)
            for mine, other in zip(decided, expected, strict=True):
                assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("spaces", "options"), [*KINDS, *((SPACES, {"num_layers": 2, **sizes}) for sizes in WIDTHS)])
def test_decisions_and_states_equal_those_of_the_network_also_with_new_weights(
    spaces: Spaces, options: dict[str, Any]
) -> None:
    made = network(spaces, options, seed=0)
    acting = ActingPolicy(made)
    assert acting.form == ("eager" if made.config.core == "lstm+memory" else "kernel")
    check_alike(made, acting, seed=1)
    made.load_state_dict(network(spaces, options, seed=2).state_dict())
    with pytest.raises(AssertionError):
        check_alike(made, acting, seed=3)
    acting.load(to_weights(made, 1, 0, 1))
    check_alike(made, acting, seed=4)


DEFAULTS = [(1, 0.002), (8, 0.002), (5, 0.05)]
"""Slots, and floors of probabilities: the last change which action is drawn."""


@pytest.mark.parametrize(("slots", "floor"), DEFAULTS)
def test_the_default_policy_acts_as_its_network_up_to_the_rounding_of_float32(slots: int, floor: float) -> None:
    """Actions and masks are the same; numbers are as close to those of the network in float64 as the network's own."""
    made, rng = trained_like(slots, slots, probability_floor=floor), np.random.default_rng(slots)
    exact, program = copy.deepcopy(made).double(), ActingPolicy(made)
    errors: dict[str, list[float]] = {name: [1e-6, 0.0, 0.0] for name in ("log_probs", "values", "h", "c")}
    distinct = set()
    for count in (1, 5, 60):
        ours, theirs = made.initial_state(count), made.initial_state(count)
        true = PolicyState(*(t.double() for t in theirs))
        for _ in range(8):
            given = random_inputs(made.spaces, rng, count)
            expected, theirs = reference(made, given, theirs)
            truth, true = reference(exact, given, true)
            decision = program.run(*given[:3], ours, np.arange(count), *given[3:])
            np.testing.assert_array_equal(decision.actions, expected.actions)
            np.testing.assert_array_equal(decision.masks, expected.masks)
            for mine, other in zip(decision, expected, strict=True):
                assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
            for name, largest in errors.items():
                pairs = (decision, ours), (expected, theirs), (truth, true)
                mine, other, right = (getattr(a if hasattr(a, name) else b, name) for a, b in pairs)
                found = greatest_error(other, right), greatest_error(mine, right), greatest_error(mine, other)
                errors[name] = [max(a, b) for a, b in zip(largest, found, strict=True)]
            distinct |= set(map(tuple, expected.actions))
    assert len(distinct) > 20
    for networks_own, of_kernels, between in errors.values():
        assert of_kernels <= 2.0 * networks_own
        assert between <= 3e-6


def test_a_row_has_the_same_bits_alone_and_among_others_also_in_another_thread() -> None:
    made, rng = trained_like(3, 1), np.random.default_rng(2)
    program, count = ActingPolicy(made), 53
    given = random_inputs(made.spaces, rng, count)
    states = PolicyState(*(torch.randn_like(t) for t in made.initial_state(count)))
    together = PolicyState(*(t.clone() for t in states))
    expected = program.run(*given[:3], together, np.arange(count), *given[3:])

    def alone(row: int) -> ActOutput:
        return program.run(*given.rows(slice(row, row + 1))[:3], states, np.array([row]), *given.rows([row])[3:])

    with ThreadPoolExecutor(4) as pool:
        for row, decision in enumerate(pool.map(alone, range(count))):
            for mine, other in zip(decision, expected, strict=True):
                np.testing.assert_array_equal(mine, other[row : row + 1])
    for mine, other in zip(states, together, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("core", ["lstm", "lstm+memory"])
def test_states_are_kept_only_where_told_and_only_in_the_given_rows(core: str) -> None:
    made, rng = network(SPACES, {"core": core}, seed=0), np.random.default_rng(0)
    program, given, rows = ActingPolicy(made), random_inputs(SPACES, rng, 3), np.array([6, 1, 4])
    states = PolicyState(*(torch.rand_like(t) for t in made.initial_state(8)))
    before = PolicyState(*(t.clone() for t in states))
    looked = program.run(*given[:3], states, rows, *given[3:], keep=False)
    assert all(torch.equal(a, b) for a, b in zip(states, before, strict=True))
    kept = program.run(*given[:3], states, rows, *given[3:])
    assert all((a == b).all() for a, b in zip(looked, kept, strict=True))
    changed = [(a != b).any(-1).any(0) for a, b in zip(states, before, strict=True) if a.numel()]
    assert all(sorted(c.nonzero().flatten().tolist()) == sorted(rows) for c in changed)


def test_arrays_that_are_read_only_or_not_contiguous_change_nothing() -> None:
    made, rng = network(SPACES, {}, seed=0), np.random.default_rng(0)
    acting, given = ActingPolicy(made), random_inputs(SPACES, rng, 6)
    masks = ActionMasks(*(np.broadcast_to(m[:1], m.shape) for m in copy.deepcopy(given.masks) if m is not None))
    plain = ActionMasks(*(np.ascontiguousarray(m) for m in masks if m is not None))
    state = PolicyState(*(torch.rand(*t.shape[:2], 2 * t.shape[2])[:, :, ::2] for t in made.initial_state(6)))
    obs, noise = np.asfortranarray(given.obs), np.asfortranarray(given.noise)
    strange, _ = acting.act(obs, given.blueprints[::1], masks, state, noise)
    contiguous = PolicyState(*(t.contiguous() for t in state))
    usual, _ = acting.act(given.obs, given.blueprints, plain, contiguous, given.noise)
    for mine, other in zip(strange, usual, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_numbers_that_are_not_finite_are_noticed() -> None:
    made, rng = network(SPACES, {}, seed=0), np.random.default_rng(0)
    given = random_inputs(SPACES, rng, 3)
    given.obs[1, 0] = np.nan
    states = made.initial_state(3)
    decision = ActingPolicy(made).run(*given[:3], states, np.arange(3), *given[3:])
    assert np.isfinite(decision.log_probs).all(1).tolist() == [True, False, True]
    assert np.isfinite(decision.values).tolist() == [True, False, True]
    assert torch.isfinite(states.h).all(-1)[0].tolist() == [True, False, True]


def test_inputs_that_do_not_fit_are_refused_before_anything_is_read_beyond_an_array() -> None:
    made, rng = network(SPACES, {}, seed=0), np.random.default_rng(0)
    acting, given = ActingPolicy(made), random_inputs(SPACES, rng, 3)
    state = acting.initial_state(3)
    for blueprint in (-2, SPACES.num_blueprints):
        with pytest.raises(IndexError):
            acting.act(given.obs, np.full_like(given.blueprints, blueprint), given.masks, state, given.noise)
    for wrong in (
        given._replace(obs=given.obs[:, 1:]),
        given._replace(noise=given.noise[:2]),
        given._replace(masks=given.masks._replace(rest=given.masks.rest[..., 1:])),
    ):
        with pytest.raises(ValueError, match="do not fit the network"):
            acting.act(*wrong[:3], state, wrong.noise)


# Training


LENGTHS = [3, 0, 7, 1, 7, 2]
CASES = [
    *((spaces, options) for spaces, options in KINDS if options.get("core") != "lstm+memory"),
    (SPACES, {"num_layers": 2}),
    (SPACES, {"num_layers": 3, "core": "feedforward", "critic": "q_op"}),
    (SPACES, {"probability_floor": 0.05, "floor_mass": 0.02}),  # every floor is at its limit
]


def random_steps(spaces: Spaces, made: FactoredRecurrentActorCritic, seed: int, lengths: list[int]) -> Steps:
    rng, spec, count = np.random.default_rng(seed), spaces.action, sum(lengths)
    actions = np.stack([rng.integers(n, size=count) for n in spec.sizes], 1)
    legal = rng.random((count, spec.flat_size)) < 0.5
    for head, first in enumerate(spec.offsets):
        legal[np.arange(count), first + actions[:, head]] = True
    state = PolicyState(*(t + torch.randn_like(t) for t in made.initial_state(len(lengths))))
    return Steps(
        torch.from_numpy(3 * rng.standard_normal((count, spaces.obs_size)).astype(np.float32)),
        torch.from_numpy(rng.integers(-1, max(1, spaces.num_blueprints), (count, spaces.slots))),
        torch.from_numpy(actions),
        torch.from_numpy(legal),
        state,
        SequenceLayout(lengths, 1.3, torch.device("cpu")),
    )


def gradients(made: FactoredRecurrentActorCritic, steps: Steps, seed: int) -> tuple[Evaluation, dict[str, Tensor]]:
    """An evaluation, and the gradient of a random function of its results."""
    made.zero_grad(set_to_none=True)
    out = made.evaluate_steps(steps)
    generator = torch.Generator().manual_seed(seed)
    parts = [t * torch.randn(t.shape, generator=generator) for t in (out.log_probs, out.entropies, out.values)]
    torch.stack([p.sum() for p in parts]).sum().backward()
    return out, {name: p.grad for name, p in made.named_parameters() if p.grad is not None}


def in_double(steps: Steps) -> Steps:
    return steps._replace(obs=steps.obs.double(), state=PolicyState(*(t.double() for t in steps.state)))


@pytest.mark.parametrize(("spaces", "options"), CASES)
def test_results_and_gradients_equal_those_of_the_network_in_float64(spaces: Spaces, options: dict[str, Any]) -> None:
    made = network(spaces, options, seed=0)
    steps = random_steps(spaces, made, 1, LENGTHS)
    exact = copy.deepcopy(made).double()
    assert made._uses_kernels(steps)
    assert not exact._uses_kernels(in_double(steps))
    ours, own = gradients(made, steps, 2)
    theirs, reference = gradients(exact, in_double(steps), 2)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other.double(), rtol=1e-4, atol=2e-5)
    assert all(name in own for name in reference)
    for name, grad in own.items():
        other = reference.get(name, torch.zeros_like(grad))  # of an unused parameter, autograd has none
        scale = float(other.abs().max()) + 0.1  # some are exactly 0, such as those of a bias that moves all logits
        torch.testing.assert_close(grad.double() / scale, other.double() / scale, rtol=1e-3, atol=1e-4, msg=name)


def test_parts_without_gradient_are_evaluated_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made = network(SPACES, {"num_layers": 2}, seed=0)
    steps = random_steps(SPACES, made, 1, LENGTHS)
    whole = made.evaluate_steps(steps)
    monkeypatch.setattr(kernels, "MOST_STEPS", 8)
    with torch.no_grad():
        parts = made.evaluate_steps(steps)
    for mine, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=0.0, atol=0.0)


def test_inputs_of_other_shapes_are_refused() -> None:
    made = network(SPACES, {}, seed=0)
    steps = random_steps(SPACES, made, 1, [2, 3])
    wrong: dict[str, Any] = {
        "obs": steps.obs[:, 1:],
        "masks": steps.masks[:-1],
        "state": PolicyState(*(t[:, :1] for t in steps.state)),
        "layout": SequenceLayout([2, 4], 1.3, torch.device("cpu")),
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match="2 sequences"):
            made.evaluate_steps(steps._replace(**{name: value}))


CHECK = """
from tests.property.policy import test_policy_kernels as own
try:
    for case in own.{}:
        own.{}(*case)
    print("right")
except AssertionError:
    print("noticed")
"""
ACTING = "DEFAULTS[-1:]", "test_the_default_policy_acts_as_its_network_up_to_the_rounding_of_float32"
GRADIENT = "CASES", "test_results_and_gradients_equal_those_of_the_network_in_float64"
MISTAKES = {
    "the masks of another op are in force": (ACTING, "policy/choice.py", "first += (op * z", "first += (0 * z"),
    "a row of a tile is another one": (ACTING, "matmul.py", "x, x0, xr, r) for", "x, x0, xr, r % 5) for"),
    "the cell forgets no gradient": (GRADIENT, "policy/core.py", "dc[j] = total * f[j]", "dc[j] = total"),
    "floors do not weaken the gradient": (GRADIENT, "policy/scores.py", "pull *= kept * probs", "pull *= probs"),
}


def outcome(check: tuple[str, str], folder: Path, environ: dict[str, str]) -> str:
    program = CHECK.format(*check)
    return subprocess.check_output([sys.executable, "-c", program], cwd=folder, env=environ, text=True).strip()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_kernel_is_noticed(mistake: str, tmp_path: Path) -> None:
    root = Path(actors.__file__).parents[1]
    for package in ("actors", "learner", "tests"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    check, name, right, wrong = MISTAKES[mistake]
    source = tmp_path / "actors/kernels" / name
    before, after = source.read_text().split(right)  # it occurs once
    source.write_text(before + wrong + after)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert outcome(check, tmp_path, environ) == "noticed"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not has_feature("avx2"), reason="this processor cannot run the code of the others")
@pytest.mark.parametrize("check", [ACTING, GRADIENT])
@pytest.mark.parametrize(("processor", "features"), [("haswell", "+avx2,+fma"), ("nehalem", "+sse4.2")])
def test_kernels_for_processors_with_shorter_vectors_are_right(
    processor: str, features: str, check: tuple[str, str], tmp_path: Path
) -> None:
    """One of them has fused products, the other has not."""
    chosen = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}
    environ = {**os.environ, **chosen, "XDG_CACHE_HOME": str(tmp_path)}
    assert outcome(check, Path(actors.__file__).parents[1], environ) == "right"
