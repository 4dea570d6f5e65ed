"""`policy.compile`: one graph without a break, and what it computes is what eager computes; autocast likewise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from actors.policy import network as network_module
from actors.policy.cores import recurrence
from actors.policy.cores.memory import read_and_write
from actors.policy.cores.sequences import SequenceBatch
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from tests.support.toy import CORES, toy_network, toy_seed, toy_sequence, toy_wave

LENGTHS = (3, 5, 2, 9)


@pytest.fixture(params=[pytest.param("aot_eager"), pytest.param("inductor", marks=pytest.mark.long)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The graph as traced, forward and backward, run as it is; or with what the compiler makes of it."""

    @cache
    def compile_with(function: Any) -> Any:
        return torch.compile(function, fullgraph=True, backend=request.param)

    monkeypatch.setattr(network_module, "_compile", compile_with)
    monkeypatch.setattr(recurrence, "compiled_step", lambda: compile_with(read_and_write))
    torch._dynamo.reset()
    yield request.param
    torch._dynamo.reset()


def sequence(network: FactoredRecurrentActorCritic) -> SequenceBatch:
    return toy_sequence(toy_wave(network, [toy_seed(n, truncated=False, salt=i) for i, n in enumerate(LENGTHS)]))


def loss(out: Evaluation) -> Tensor:
    return out.log_probs.sum() + out.values.square().sum() - out.entropies.sum()


def gradients(network: FactoredRecurrentActorCritic, out: Evaluation) -> list[Tensor]:
    parameters = list(network.parameters())
    return list(torch.autograd.grad(loss(out), parameters, allow_unused=True, materialize_grads=True))


def check_compiled(**options: str) -> None:
    """`fullgraph=True` makes a break of the graph an error, so that equal numbers are left to look at."""
    eager, compiled = toy_network(**options), toy_network(**options, compile=True)
    seeds = [toy_seed(n, truncated=True, salt=i) for i, n in enumerate(LENGTHS)]
    for ours, theirs in zip(toy_wave(eager, seeds), toy_wave(compiled, seeds), strict=True):
        assert (ours.actions == theirs.actions).all()
        for name in ("log_probs", "values", "baseline_values"):
            scale = max(1.0, float(abs(getattr(ours, name)).max()))
            assert abs(getattr(ours, name) - getattr(theirs, name)).max() < 1e-5 * scale
    given = sequence(eager)
    for waste in (1.0, 9.0):  # a bucket per length, and one for all
        ours, theirs = eager.evaluate(given, waste), compiled.evaluate(given, waste)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    for a, b in zip(gradients(eager, ours), gradients(compiled, theirs), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_act_and_evaluate_have_no_graph_break_and_compute_the_same(backend: str) -> None:
    check_compiled(core="lstm+memory", critic="q_op")


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{"core": "lstm"}, {"core": "feedforward"}, {"heads": "independent"}, {"encoder": "flat"}]
)
def test_every_other_option_compiles(options: dict[str, str], backend: str) -> None:
    check_compiled(**options)


def test_the_operators_derivative_is_that_of_the_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiled code calls instead of the fused LSTM and the scan, without a compiler: values and gradients."""
    monkeypatch.setattr(recurrence, "compiled_step", lambda: read_and_write)
    network = toy_network(core="lstm+memory")
    given = sequence(network)
    eager = network.evaluate(given)
    object.__setattr__(network.config, "compile", True)
    network._compiled = lambda function: function  # type: ignore[method-assign]
    opaque = network.evaluate(given)
    for a, b in zip(eager, opaque, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    for a, b in zip(gradients(network, eager), gradients(network, opaque), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_an_operator_that_loses_a_gradient_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run = recurrence.recur_sequence

    def detached(x: Tensor, *rest: Any) -> Any:
        return run(x.detach(), *rest)

    monkeypatch.setattr(recurrence, "recur_sequence", detached)
    with pytest.raises(AssertionError):
        test_the_operators_derivative_is_that_of_the_recurrence(monkeypatch)


@pytest.mark.parametrize("core", CORES)
def test_under_bf16_encoder_and_core_agree_to_bf16_and_the_rest_is_fp32(core: str) -> None:
    network = toy_network(core=core, critic="q_op")
    given = sequence(network)
    exact = network.evaluate(given)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = network.evaluate(given)
    assert all(t.dtype == torch.float32 for t in reduced)
    assert not torch.equal(exact.hidden, reduced.hidden)  # it was in force
    for a, b in zip(exact, reduced, strict=True):
        if a.numel():
            assert float((a - b).detach().abs().max() / a.detach().abs().max().clamp(min=1.0)) < 2e-2
    kept = [g.norm() for g in gradients(network, exact)]
    for a, b in zip(kept, (g.norm() for g in gradients(network, reduced)), strict=True):
        assert float(abs(a - b)) < 0.1 * float(a) + 0.05


def check_casts_are_not_kept(network: FactoredRecurrentActorCritic) -> None:
    """The trap: a pass without gradient inside an autocast region whose casts the next pass would use again."""
    given = sequence(network)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            network.evaluate(given)
        found = gradients(network, network.evaluate(given))
    named = dict(zip((name for name, _ in network.named_parameters()), found, strict=True))
    # What is added to all choices of a head alike has no gradient but for rounding.
    exempt = ("core.memory", "heads.pointer.2.bias")
    assert all(bool((g != 0).any()) for name, g in named.items() if not name.startswith(exempt)), named.keys()


@pytest.mark.parametrize("core", CORES)
def test_a_pass_without_gradient_does_not_cut_the_next_ones(core: str) -> None:
    check_casts_are_not_kept(toy_network(core=core))


def test_casts_that_are_kept_are_caught() -> None:
    network = toy_network()
    kept = [w.detach().bfloat16() for w in network.lstm.parameters()]
    network.core._all_weights = lambda: (kept, [])  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        check_casts_are_not_kept(network)
