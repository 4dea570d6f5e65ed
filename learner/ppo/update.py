"""The factored recurrent PPO update on one batch."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isnan

import numpy as np
import torch
from torch import Tensor

from actors.policy.cores.sequences import Steps
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.precision import tf32
from learner.config import LearnerConfig
from learner.ppo.batch import Batch
from learner.ppo.extremes import bound_ratios, clip_rewards, clip_values
from learner.ppo.metrics import batch_metrics, step_metrics
from learner.ppo.minibatch import Minibatch, minibatch, replay, whole_batch
from learner.ppo.objective import entropy_coefficient, k3, make_denominators, objective
from learner.ppo.optimizer import descend
from learner.ppo.prior import Prior
from learner.ppo.step_scale import running_std, scaled, step_scale
from learner.ppo.targets import Targets, make_targets

KL_STOP = 1.5  # times target_kl


class PPOUpdate:
    """The update of one network with one optimizer. The order of minibatches depends only on `seed` and the update's
    number; `heartbeat` is called before each.

    An update takes a share of the optimizer's learning rate (see `learner.ppo.step_scale`). `usual_advantage_std`, the
    running standard deviation of advantages before they are normalized, is kept for it from one update to the next.
    """

    def __init__(
        self,
        network: FactoredRecurrentActorCritic,
        optimizer: torch.optim.Optimizer,
        config: LearnerConfig,
        seed: int = 0,
        heartbeat: Callable[[], None] = lambda: None,
        prior: FactoredRecurrentActorCritic | None = None,
    ) -> None:
        self.network, self.optimizer, self.seed, self._heartbeat = network, optimizer, seed, heartbeat
        self.config = config.for_core(network.config.is_recurrent)
        self.device = next(network.parameters()).device
        self.prior = Prior(prior.to(self.device)) if prior and config.keeps_prior else None
        self.usual_advantage_std = 0.0
        self.reads_flags = self.device.type == "cpu"  # reading is free on a CPU: steps after a KL stop are left out

    def __call__(self, batch: Batch, update: int, version: int) -> dict[str, float]:
        """Run one update on a batch; `version` is that of the weights before it. Returns metrics by name."""
        with tf32(self.config.precision == "tf32"):
            return self._update(batch, update, version)

    def _update(self, batch: Batch, update: int, version: int) -> dict[str, float]:
        c, network = self.config, self.network
        batch, metrics = clip_rewards(batch.to(self.device), network.value_normalizer)
        # Burn-in is replayed once: once for each minibatch would take longer than the steps themselves.
        stored, batch = batch, replay(batch, self._advance)
        proximal, clipped = clip_values(self.forward(batch))
        metrics["clipped_values"] = metrics["clipped_values"] + clipped
        batch, metrics["clipped_log_probs"] = bound_ratios(batch, proximal.log_probs)
        if self.prior is not None:
            batch, charged = self.prior.charge(batch, c.prior_coef)
            metrics |= charged
        if c.leave_one_out:  # other episodes of the same seed, mean over the episodes
            metrics["same_seed_episodes"] = (batch.seed_index[:, None] == batch.seed_index).sum(1).double().mean() - 1.0
        targets, values = make_targets(network, proximal, batch, c)
        metrics |= batch_metrics(network, proximal, values, targets, batch, version)
        del proximal, values
        coefficient = entropy_coefficient(c, update)
        std, explained = torch.stack([metrics["advantage_std"], metrics["explained_variance"]]).tolist()
        self.usual_advantage_std = running_std(self.usual_advantage_std, std)
        with scaled(self.optimizer, step_scale(std, self.usual_advantage_std, explained)):
            lr = self.optimizer.param_groups[0]["lr"]
            metrics |= self._optimize(batch, targets, coefficient, update)
        # The KL stop is checked before each step and never after the last one, which takes an extra pass.
        self._heartbeat()
        moved = self.forward(stored).log_probs - targets.proximal_log_probs
        metrics["kl"] = k3(moved.sum(-1), targets.unforced)
        metrics["clipped_observations"] = network.update_normalizer(batch.obs[: batch.size])
        names, values = list(metrics), torch.stack([v.detach().to(self.device).double() for v in metrics.values()])
        measured = dict(zip(names, values.tolist(), strict=True))
        if isnan(measured["ratio_error"]):  # the current weights chose no step: nothing to compare
            del measured["ratio_error"]
        measured |= {"lr": lr, "entropy_coef": coefficient}
        measured |= {"kl_limit": KL_STOP * c.target_kl} if c.target_kl is not None else {}
        return measured | {"ratio_error_limit": c.ratio_error_limit}

    @torch.no_grad()
    def forward(self, batch: Batch) -> Evaluation:
        """Evaluate every step of a batch with the current weights."""
        with tf32(self.config.precision == "tf32"):
            batch = replay(batch.to(self.device), self._advance)
            return self._evaluate(batch, whole_batch(batch))

    def _evaluate(self, batch: Batch, part: Minibatch) -> Evaluation:
        with self._autocast():
            return self.network.evaluate_steps(part.steps(batch))

    def _advance(self, steps: Steps) -> PolicyState:
        with self._autocast():
            return self.network.advance(steps)

    def _autocast(self) -> torch.autocast:
        """Return a new context for one forward pass of encoder and core: weights that were cast without gradient must
        not be reused by a later pass."""
        enabled = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def _minibatches(self, batch: Batch, update: int) -> list[Minibatch]:
        """Return the minibatches of all passes; each consists of whole chunks, in a new order in each pass."""

        parts: list[Minibatch] = []
        for epoch in range(self.config.update_epochs or 1):
            rng = np.random.Generator(np.random.Philox(key=(self.seed, update), counter=[0, 0, 0, epoch]))
            order = rng.permutation(len(batch.chunk_lengths))
            parts += [minibatch(batch, np.sort(chunks)) for chunks in np.array_split(order, self.config.minibatches)]
        return parts

    def _optimize(self, batch: Batch, targets: Targets, entropy_coef: float, update: int) -> dict[str, Tensor]:
        """Run `update_epochs` passes over minibatches. The KL stop and the skipping of non-finite steps are 0/1 flags
        on the device, so that nothing in the loop waits for it."""
        c = self.config
        kl_limit = inf if c.target_kl is None else KL_STOP * c.target_kl
        denominators, spec = make_denominators(targets, c, c.minibatches), self.network.spaces.action
        parts = self._minibatches(batch, update)
        zero = torch.zeros((), device=self.device)
        stopped, skipped = zero, zero
        flags: list[Tensor] = []  # 1 for minibatches before the stop
        measured: list[Tensor] = []  # [2 + groups] each: losses and gradient norms
        log_probs: list[Tensor] = []  # [n, H] each
        groups: tuple[str, ...] = ()
        for part in parts:
            self._heartbeat()
            t = Targets(*map(part.select, targets))
            out = self._evaluate(batch, part)
            log_probs.append(out.log_probs.detach())
            loss = objective(out, t, c, entropy_coef, denominators, spec.num_continuous)
            stopped = torch.maximum(stopped, (loss.kl > kl_limit).to(zero.dtype))
            flags.append(1.0 - stopped)
            if self.reads_flags and stopped > 0:
                break
            broken, by_group = descend(self.optimizer, loss.total, c.grad_clip, stopped)
            skipped = skipped + broken * flags[-1]
            groups = tuple(by_group)
            measured.append(torch.stack([loss.policy, loss.value, *by_group.values()]))
        passed = torch.stack(flags).sum()
        # Those of all minibatches at once, instead of many small operations in the loop.
        live = torch.cat([flag.expand(len(x)) for flag, x in zip(flags, log_probs, strict=True)]) > 0
        every = torch.arange(batch.size, device=self.device)
        order = torch.cat([part.select(every) for part in parts[: len(flags)]])
        t, share = Targets(*(x.index_select(0, order) for x in targets)), denominators.policy * passed.clamp(min=1.0)
        metrics = step_metrics(torch.cat(log_probs), t, live, c, share, spec.names, spec.num_continuous)
        if measured:
            finite = (
                torch.stack(measured).nan_to_num(posinf=0.0, neginf=0.0) * torch.stack(flags[: len(measured)])[:, None]
            )
            means = finite.sum(0) / passed.clamp(min=1.0)
            metrics |= dict(zip(("loss_policy", "loss_value", *groups), means, strict=True))
        waste = sum(p.layout.padded for p in parts[: c.minibatches]) / max(1, batch.size)
        return metrics | {
            "update_epochs_done": passed / c.minibatches,
            "kl_stop": stopped,
            "skipped_steps": skipped,
            "padding_waste": torch.tensor(waste),
        }
