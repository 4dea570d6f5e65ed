"""`policy.compile` compiles without graph breaks and equals eager execution; autocast does not lose gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor
from torch._dynamo.utils import counters

from actors.policy import compiled as compiled_module
from actors.policy import network as network_module
from actors.policy.acting.exported import example_inputs
from actors.policy.compiled import compiled, dynamic
from actors.policy.cores import core, recurrence
from actors.policy.cores.memory import scan
from actors.policy.cores.sequences import Steps
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic, MaskTensors
from actors.policy.state import PolicyState
from actors.types.spaces import Spaces
from learner.config import LearnerConfig
from learner.ppo.batch import Batch, make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.learning.metrics import comparable
from tests.support.learning.sequences import SequenceBatch, evaluate, flatten
from tests.support.learning.toy import CORES, SPACES, toy_network, toy_seed, toy_sequence, toy_wave

pytestmark = pytest.mark.timeout(400)  # the compiler needs minutes on a busy machine
LENGTHS = (3, 5, 2, 9)


def forget() -> None:
    """Discard all compiled graphs and the record of the warning."""
    torch._dynamo.reset()
    compiled_module._compile.cache_clear()
    compiled_module.warn_eager_fallback.cache_clear()
    counters.clear()


@pytest.fixture
def compile_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that selects the backend of torch.compile; `eager` runs traced graphs directly."""
    forget()
    yield lambda backend: monkeypatch.setattr(compiled_module, "BACKEND", backend)
    forget()


@pytest.fixture(params=["aot_eager", "inductor"])
def backend(request: pytest.FixtureRequest, compile_with: Callable[[str], None]) -> str:
    """Run traced forward and backward graphs directly (`aot_eager`), or compile them (`inductor`)."""
    compile_with(request.param)
    return str(request.param)


def sequence(network: FactoredRecurrentActorCritic) -> SequenceBatch:
    return toy_sequence(toy_wave(network, [toy_seed(n, truncated=False, salt=i) for i, n in enumerate(LENGTHS)]))


def loss(out: Evaluation) -> Tensor:
    return out.log_probs.sum() + out.values.square().sum() - out.entropies.sum()


def gradients(network: FactoredRecurrentActorCritic, out: Evaluation) -> list[Tensor]:
    parameters = list(network.parameters())
    return list(torch.autograd.grad(loss(out), parameters, allow_unused=True, materialize_grads=True))


def check_compiled(**options: str) -> None:
    """Compare results; a graph break is an error already, because of `fullgraph=True`."""
    eager, compiled = toy_network(**options), toy_network(**options, compile=True)
    seeds = [toy_seed(n, truncated=True, salt=i) for i, n in enumerate(LENGTHS)]
    for ours, theirs in zip(toy_wave(eager, seeds), toy_wave(compiled, seeds), strict=True):
        assert (ours.actions == theirs.actions).all()
        for name in ("log_probs", "values", "baseline_values"):
            scale = max(1.0, float(abs(getattr(ours, name)).max()))
            assert abs(getattr(ours, name) - getattr(theirs, name)).max() < 1e-5 * scale
    given = sequence(eager)
    for waste in (1.0, 9.0):  # a bucket per length, and one for all
        ours, theirs = evaluate(eager, given, waste), evaluate(compiled, given, waste)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    for a, b in zip(gradients(eager, ours), gradients(compiled, theirs), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


OPTIONS: list[dict[str, str]] = [
    {"core": "lstm+memory", "critic": "q_op"},
    {"core": "lstm"},
    {"core": "feedforward"},
    {"heads": "independent"},
    {"encoder": "flat"},
]


def test_act_and_evaluate_are_traced_without_graph_breaks_and_equal_eager(
    compile_with: Callable[[str], None],
) -> None:
    compile_with("eager")
    check_compiled(**OPTIONS[0])


@pytest.mark.long
@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_compiles(options: dict[str, str], backend: str) -> None:
    check_compiled(**options)


def test_the_custom_operator_passes_pytorchs_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fake results have the shapes of the real ones, and a trace of its forward and backward pass computes what
    it computes."""
    operator, calls = recurrence._operator, []

    def recorded(*args: Any) -> Any:
        calls.append(args)
        return operator(*args)

    monkeypatch.setattr(recurrence, "_operator", recorded)
    monkeypatch.setattr(recurrence, "compiled_scan", scan)
    monkeypatch.setattr(network_module, "compiled", lambda function: function)
    network = toy_network(core="lstm+memory")
    given = sequence(network)
    object.__setattr__(network.config, "compile", True)
    evaluate(network, given)
    ((x, layout, *differentiable, dtype),) = calls
    own_x, *leaves = ([t.detach().requires_grad_() for t in group] for group in ([x], *differentiable))
    torch.library.opcheck(operator, (own_x[0], layout, *leaves, dtype))


def test_the_custom_operator_has_the_values_and_gradients_of_the_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests the operator that compiled code calls instead of LSTM and scan, without a compiler."""
    monkeypatch.setattr(recurrence, "compiled_scan", scan)
    monkeypatch.setattr(network_module, "compiled", lambda function: function)
    network = toy_network(core="lstm+memory")
    given = sequence(network)
    eager = evaluate(network, given)
    object.__setattr__(network.config, "compile", True)
    opaque = evaluate(network, given)
    for a, b in zip(eager, opaque, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    for a, b in zip(gradients(network, eager), gradients(network, opaque), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_an_operator_that_loses_a_gradient_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    run = recurrence.recur_sequence

    def detached(x: Tensor, *rest: Any) -> Any:
        return run(x.detach(), *rest)

    monkeypatch.setattr(recurrence, "recur_sequence", detached)
    with pytest.raises(AssertionError):
        test_the_custom_operator_has_the_values_and_gradients_of_the_recurrence(monkeypatch)


CHUNKS: dict[str, Any] = {"chunk_length": 8, "burn_in": 4}


def wave(seed: int, lengths: Sequence[int], core: str, chunked: bool) -> Batch:
    seeds = [toy_seed(int(n), truncated=bool(i % 2), salt=i) for i, n in enumerate(lengths)]
    episodes = toy_wave(toy_network(seed, core=core), seeds, state_stride=4)
    return make_batch(episodes, SPACES, **(CHUNKS if chunked else {}))


def updates(seed: int, core: str, chunked: bool) -> tuple[PPOUpdate, PPOUpdate]:
    """Return the same learner's update, compiled and eager, both with a prior."""
    cut = CHUNKS if chunked else {}
    config = LearnerConfig(state_stride=4, target_kl=1e9, update_epochs=1, minibatches=3, prior_coef=1.0, **cut)
    made = []
    for compile_ in (True, False):
        network, prior = (toy_network(s, core=core, compile=compile_) for s in (seed, seed + 100))
        made.append(PPOUpdate(network, make_optimizer(network, 1e-4, 0.0), config, prior=prior))
    return made[0], made[1]


def ragged(rng: np.random.Generator, count: int) -> Iterator[Sequence[int]]:
    """Yield lists of episode lengths: single steps, short, few and many episodes."""
    for u in range(count):
        longest, most = ((2, 4), (12, 9), (30, 20), (26, 2))[u % 4]
        yield rng.integers(1, longest, rng.integers(1, most)).tolist() or [25]


def check_ragged_batches(seeds: Sequence[int], batches: int, core: str) -> int:
    """Compare single episodes, as a learner evaluates after a crash, and training batches. Returns the number
    of graphs. Recompilation for every shape raises or logs a warning."""
    with capture_logs() as logs:
        for seed in seeds:
            chunked = seed % 2 == 1
            ours, theirs = updates(seed, core, chunked)
            for length in (25, 7, 1):
                probe = wave(seed, [length], core, chunked)
                for a, b in zip(ours.forward(probe), theirs.forward(probe), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            for u, lengths in enumerate(ragged(np.random.default_rng(seed), batches)):
                batch = wave(seed, lengths, core, chunked)
                expected, found = theirs(batch, u, 0), ours(batch, u, 0)
                for name, value in comparable(expected).items():
                    assert found[name] == pytest.approx(value, rel=1e-3, abs=1e-4), (seed, u, lengths, name)
            for a, b in zip(ours.network.parameters(), theirs.network.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert not logs
    return counters["stats"]["unique_graphs"]


def test_ragged_batches_share_three_graphs(compile_with: Callable[[str], None]) -> None:
    """There is one graph for the prior, one for the evaluation before the update and one with gradients."""
    compile_with("eager")
    assert check_ragged_batches((1,), 4, "lstm") == 3


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("core", CORES)
def test_thirty_ragged_batches_stay_below_the_recompilation_limit(core: str, backend: str) -> None:
    """Inductor adds guards on sizes and with them a few graphs, but must stay below PyTorch's limit."""
    graphs = check_ragged_batches((0, 1, 2, 3), 30, core)
    traced = 7 if core == "lstm+memory" else 3  # four of the scan's step
    assert graphs == traced or (backend == "inductor" and graphs < 2 * traced)


def test_fleets_of_all_sizes_share_two_graphs(compile_with: Callable[[str], None]) -> None:
    """One for a fleet of one environment, and one for all others."""
    compile_with("eager")
    compiled, eager = toy_network(compile=True), toy_network()
    with capture_logs() as logs:
        for size in (8, 1, 3, 2, 12, 1, 7, 5, 4, 10, 6):
            seeds = [toy_seed(2, truncated=True, salt=i) for i in range(size)]
            for ours, theirs in zip(toy_wave(compiled, seeds), toy_wave(eager, seeds), strict=True):
                np.testing.assert_allclose(ours.log_probs, theirs.log_probs, rtol=1e-4, atol=1e-5)
    assert not logs
    assert counters["stats"]["unique_graphs"] == 2


def test_beyond_the_recompilation_limit_calls_run_eagerly_with_one_warning(compile_with: Callable[[str], None]) -> None:
    compile_with("eager")
    with torch._dynamo.config.patch(recompile_limit=1), capture_logs() as logs:
        ours, theirs = updates(0, "lstm", chunked=False)
        for u, lengths in enumerate(([3, 5], [4, 4, 2], [9])):
            batch = wave(0, lengths, "lstm", chunked=False)
            expected, found = theirs(batch, u, 0), ours(batch, u, 0)
            assert found["loss_value"] == pytest.approx(expected["loss_value"], rel=1e-4)
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "policy.compile" in logs[0]["event"]


@pytest.mark.parametrize("core", CORES)
def test_under_bf16_results_are_float32_and_agree_to_bf16_precision(core: str) -> None:
    network = toy_network(core=core, critic="q_op")
    given = sequence(network)
    exact = evaluate(network, given)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = evaluate(network, given)
    assert all(t.dtype == torch.float32 for t in reduced)
    assert not torch.equal(exact.hidden, reduced.hidden)  # autocast had an effect
    for a, b in zip(exact, reduced, strict=True):
        if a.numel():
            assert float((a - b).detach().abs().max() / a.detach().abs().max().clamp(min=1.0)) < 3e-2
    kept = [g.norm() for g in gradients(network, exact)]
    for a, b in zip(kept, (g.norm() for g in gradients(network, reduced)), strict=True):
        assert float(abs(a - b)) < 0.1 * float(a) + 0.05


def check_casts_are_not_kept(network: FactoredRecurrentActorCritic) -> None:
    """Autocast caches casts; those of a pass without gradient must not be used by the next pass."""
    given = sequence(network)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            evaluate(network, given)
        found = gradients(network, evaluate(network, given))
    named = dict(zip((name for name, _ in network.named_parameters()), found, strict=True))
    # A bias added to all choices of a head has no gradient except for rounding errors.
    exempt = ("core.memory", "heads.pointer.2.bias")
    assert all(bool((g != 0).any()) for name, g in named.items() if not name.startswith(exempt)), named.keys()


@pytest.mark.parametrize("core", CORES)
def test_a_pass_without_gradient_does_not_cut_the_gradient_of_the_next(core: str) -> None:
    check_casts_are_not_kept(toy_network(core=core))


def test_cached_casts_are_detected() -> None:
    network = toy_network()
    kept = [w.detach().bfloat16() for w in network.lstm.parameters()]
    network.core._all_weights = lambda: (kept, [])  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        check_casts_are_not_kept(network)


def test_a_network_that_has_never_acted_is_compiled(compile_with: Callable[[str], None]) -> None:
    """A learner evaluates first: nothing of its spaces is cached yet, and the compiler cannot compute what is not."""
    compile_with("eager")
    given = flatten(sequence(toy_network()))
    network = FactoredRecurrentActorCritic(
        Spaces.from_json(SPACES.to_json()), replace(toy_network().config, compile=True)
    )
    assert network.evaluate_steps(given).values.isfinite().all()


def test_compiled_programs_leave_no_tensor_on_the_cpu(
    compile_with: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On `meta`, which has neither values nor autocast, a tensor that stayed behind is an error."""
    compile_with("eager")
    monkeypatch.setattr(core, "_dtype", lambda x: x.dtype)
    monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: nullcontext())
    options, meta = {"core": "lstm+memory", "critic": "q_op"}, torch.device("meta")
    steps = flatten(sequence(toy_network(**options)))
    state = PolicyState(*(t.to(meta) for t in steps.state))
    moved = Steps(*(t.to(meta) for t in steps[:4]), state, steps.layout.to(meta))
    network = toy_network(**options, compile=True).to(meta)
    out = network.evaluate_steps(moved)
    assert {t.device for t in (*out, *gradients(network, out))} == {meta}
    inputs = [dynamic(t.to(meta)) for t in example_inputs(network, 2)[:11]]
    state = PolicyState(*(dynamic(t.contiguous(), 1) for t in inputs[5:9]))
    step = compiled(network_module._step)
    stepped = step(network, *inputs[:2], MaskTensors(*inputs[2:5]), state, inputs[10], False)
    assert {t.device for t in (*stepped[:5], *stepped.state)} == {meta}
