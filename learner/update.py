"""The factored recurrent PPO update: one batch in, better weights out (SPEC 8)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from learner import losses
from learner.batching import Batch, Chunks, cut, select_rows
from learner.config import LearnerConfig
from learner.gae import gae, normalise
from learner.optimiser import gradient_norms

KL_STOP = 1.5  # times target_kl


class Targets(NamedTuple):
    """What the update aims at: N flat valid steps, in the order of the chunk rows."""

    advantages: Tensor  # [N] normalised
    returns: Tensor  # [N] in the critic's new units
    proximal_values: Tensor  # [N] in the critic's new units
    proximal_log_probs: Tensor  # [N, H]
    behaviour_log_probs: Tensor  # [N, H]
    counted: Tensor  # [N, H] relevant and unforced
    unforced: Tensor  # [N]


def entropy_coefficient(config: LearnerConfig, update: int) -> float:
    """Linear from `entropy_start` to `entropy_end` over `entropy_anneal_updates`; constant where that is 0."""
    if config.entropy_anneal_updates == 0:
        return config.entropy_coef
    share = min(1.0, update / config.entropy_anneal_updates)
    return config.entropy_start + share * (config.entropy_end - config.entropy_start)


class PPOUpdate:
    """Holds the network and its optimizer; `seed` and the update's number alone order the minibatches."""

    def __init__(
        self,
        network: FactoredRecurrentActorCritic,
        optimiser: torch.optim.Optimizer,
        config: LearnerConfig,
        seed: int = 0,
    ) -> None:
        self.network, self.optimiser, self.config, self.seed = network, optimiser, config, seed
        self.device = next(network.parameters()).device

    def __call__(self, batch: Batch, update: int, version: int) -> dict[str, float]:
        """One update on a batch; `version` is that of the weights before it. Returns metrics by name."""
        batch = batch.to(self.device)
        chunks = cut(batch, batch.valid.shape[1], self.config.state_stride)
        targets, metrics = self._targets(batch, chunks, version)
        coefficient = entropy_coefficient(self.config, update)
        metrics |= self._optimise(chunks, targets, coefficient, update)
        metrics["entropy_coef"] = torch.tensor(coefficient)
        self.network.encoder.update_normaliser(batch.obs[batch.valid])
        names, values = list(metrics), torch.stack([v.detach().double().cpu() for v in metrics.values()])
        return dict(zip(names, values.tolist(), strict=True))

    @torch.no_grad()
    def _targets(self, batch: Batch, chunks: Chunks, version: int) -> tuple[Targets, dict[str, Tensor]]:
        """One pass with the present (proximal) weights, GAE, and the move of the value scale."""
        proximal = self.network.evaluate(chunks.sequence, self.config.max_padding_waste)
        place = chunks.steps[chunks.sequence.valid]  # of each flat step in [E * T]
        scale = self.network.value_normaliser
        values = torch.zeros(batch.valid.numel(), device=self.device)
        values[place] = scale.denormalise(proximal.values)
        values = values.view_as(batch.valid)
        estimate = gae(
            batch.rewards,
            values,
            batch.valid,
            batch.terminated,
            batch.bootstrap_value,
            self.config.gamma,
            self.config.gae_lambda,
        )

        def flat(t: Tensor) -> Tensor:
            return t.flatten(0, 1)[place]

        unforced = ~flat(batch.forced)
        behaviour = flat(batch.log_probs)
        counted = self.network.relevance[flat(batch.actions)[:, 0]] & unforced[:, None]
        returns = flat(estimate.returns)
        scale.update(returns, self.network.value_output)
        targets = Targets(
            advantages=normalise(flat(estimate.advantages), unforced),
            returns=scale.normalise(returns),
            proximal_values=scale.normalise(flat(values)),
            proximal_log_probs=proximal.log_probs,
            behaviour_log_probs=behaviour,
            counted=counted,
            unforced=unforced,
        )
        log_ratio = (proximal.log_probs - behaviour).sum(-1)
        fresh = unforced & (flat(batch.version) == version)
        metrics = {
            "explained_variance": losses.explained_variance(flat(values), returns),
            "lag_kl": losses.k3(log_ratio, unforced),
            "ratio_error": (log_ratio.exp() - 1.0).abs().masked_fill(~fresh, 0.0).amax(),
            "hidden_norm": proximal.hidden.norm(dim=-1).mean(),
            "padding_waste": torch.tensor(batch.valid.numel() / max(1, place.numel())),
            "forced_fraction": 1.0 - unforced.double().mean(),
        }
        metrics |= {f"memory/{n}": proximal.memory[:, k].mean() for k, n in enumerate(self.network.core.statistics)}
        return targets, metrics | self._per_head(batch, proximal, targets, place)

    def _per_head(self, batch: Batch, proximal: Evaluation, targets: Targets, place: Tensor) -> dict[str, Tensor]:
        spec = self.network.spaces.action
        steps = targets.counted.sum(0).clamp(min=1)
        entropy = proximal.entropies.masked_fill(~targets.counted, 0.0).sum(0) / steps
        metrics = {f"entropy/{name}": entropy[k] for k, name in enumerate(spec.names)}
        ops = batch.actions.flatten(0, 1)[place, 0]
        share = torch.bincount(ops, minlength=spec.num_ops).double() / max(1, ops.numel())
        return metrics | {f"op/{name}": share[o] for o, name in enumerate(spec.heads[0].choices)}

    def _optimise(self, chunks: Chunks, targets: Targets, entropy_coef: float, update: int) -> dict[str, Tensor]:
        """`update_epochs` passes over minibatches of whole rows. The KL stop and the skip of a non-finite step are a
        0/1 flag on the device (the optimizer's `found_inf`), so nothing waits for the host."""
        c, rows = self.config, chunks.sequence.valid.shape[0]
        first_step = chunks.sequence.valid.sum(1).cumsum(0) - chunks.sequence.valid.sum(1)
        denominator = targets.unforced.sum().clamp(min=1) / c.minibatches
        value_denominator = targets.unforced.numel() / c.minibatches
        zero = torch.zeros((), device=self.device)
        stopped, skipped, done, kl = zero, zero, zero, zero
        sums: dict[str, Tensor] = {}
        for epoch in range(c.update_epochs):
            order = np.random.Generator(
                np.random.Philox(key=(self.seed, update), counter=[0, 0, 0, epoch])
            ).permutation(rows)
            for part in np.array_split(order, c.minibatches):
                chosen = torch.from_numpy(np.sort(part)).to(self.device)
                sequence = select_rows(chunks.sequence, chosen)
                steps = _flat_steps(first_step[chosen], sequence.valid)
                t = Targets(*(x[steps] for x in targets))
                out = self.network.evaluate(sequence, c.max_padding_waste)
                kl = losses.k3((out.log_probs.detach() - t.proximal_log_probs).sum(-1), t.unforced)
                stopped = torch.maximum(stopped, (kl > KL_STOP * c.target_kl).to(zero.dtype))
                loss, parts = self._loss(out, t, entropy_coef, denominator, value_denominator)
                self.optimiser.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                parts |= {f"grad_norm_{name}": norm for name, norm in gradient_norms(self.optimiser).items()}
                parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
                norm = torch.nn.utils.clip_grad_norm_(parameters, c.grad_clip)
                broken = (~norm.isfinite()).to(zero.dtype)
                self.optimiser.found_inf = torch.maximum(stopped, broken)  # type: ignore[attr-defined]
                self.optimiser.grad_scale = None  # type: ignore[attr-defined]
                self.optimiser.step()
                skipped = skipped + broken * (1.0 - stopped)
                done = done + (1.0 - stopped) / c.minibatches
                for name, value in parts.items():
                    gated = torch.where(stopped > 0, zero, value.detach().nan_to_num(posinf=0.0, neginf=0.0))
                    sums[name] = sums.get(name, zero) + gated
                if (
                    self.device.type == "cpu" and stopped > 0
                ):  # reading the flag is free here, and the rest is not needed
                    break
            if self.device.type == "cpu" and stopped > 0:
                break
        steps_done = (done * c.minibatches).clamp(min=1.0)
        means = {name: total / steps_done for name, total in sums.items()}
        return means | {"kl": kl, "update_epochs_done": done, "skipped_steps": skipped}

    def _loss(
        self, out: Evaluation, t: Targets, entropy_coef: float, denominator: Tensor, value_denominator: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        c = self.config
        ratio = (out.log_probs - t.behaviour_log_probs).exp()
        policy = losses.policy_loss(ratio, t.advantages, t.counted, c.clip, denominator)
        value = losses.value_loss(out.values, t.proximal_values, t.returns, c.value_clip, value_denominator)
        entropy = losses.entropy_bonus(out.entropies, t.counted, denominator)
        with torch.no_grad():
            joint = (out.log_probs - t.behaviour_log_probs).sum(-1).exp().masked_fill(~t.unforced, 1.0)
            parts = {"loss_policy": policy, "loss_value": value, "ratio_mean": joint.mean(), "ratio_max": joint.amax()}
            clipped = ((ratio - 1.0).abs() > c.clip) & t.counted
            active = t.counted.sum(0).clamp(min=1)
            for k, name in enumerate(self.network.spaces.action.names):
                parts[f"clip_fraction/{name}"] = clipped[:, k].sum() / active[k]
                parts[f"kl/{name}"] = losses.k3(out.log_probs[:, k] - t.behaviour_log_probs[:, k], t.counted[:, k])
        return policy + c.value_coef * value - entropy_coef * entropy, parts


def _flat_steps(first: Tensor, valid: Tensor) -> Tensor:
    """Indices of the rows' valid steps among all flat steps; `first [R]` is each row's first."""
    offsets = torch.arange(valid.shape[1], device=valid.device)
    return (first[:, None] + offsets)[valid]
