"""Targets of an update: advantages and returns, computed in one pass with the weights before the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.types.actions import ActionSpec
from learner.config import LearnerConfig
from learner.ppo import losses
from learner.ppo.batch import Batch
from learner.ppo.gae import gae, head_advantages, normalize
from learner.ppo.leave_one_out import leave_one_out

WEIGHT_LIMIT = 2.0  # of the decoupled objective's importance weight
MOST_BARS = 32  # choices or heads with metrics of their own; where there are more, neighbours share them
MOST_HISTOGRAMS = 8  # heads whose choices are counted


class Targets(NamedTuple):
    """Targets of N steps, in the order of the batch."""

    advantages: Tensor  # [N, H] normalized; [N, 1] with one ratio for all heads
    returns: Tensor  # [N] in the critic's new units
    proximal_values: Tensor  # [N] in the critic's new units, as its rescaled output layer gives them
    proximal_log_probs: Tensor  # [N, H]
    behaviour_log_probs: Tensor  # [N, H]
    counted: Tensor  # [N, H] relevant and unforced
    unforced: Tensor  # [N]


@torch.no_grad()
def make_targets(
    network: FactoredRecurrentActorCritic, proximal: Evaluation, batch: Batch, config: LearnerConfig
) -> tuple[Targets, Tensor]:
    """Compute the targets, and the proximal values `[N]` in units of the return. Updates the network's value scale."""
    scale = network.value_normalizer
    values = scale.denormalize(proximal.values.float())
    estimate = gae(
        batch.to_rows(batch.rewards),
        batch.to_rows(values),
        batch.valid,
        batch.terminated,
        batch.bootstrap_value,
        config.gamma,
        config.gae_lambda,
    )
    unforced, behaviour, returns = ~batch.forced, batch.log_probs, batch.from_rows(estimate.returns)
    baseline = scale.denormalize(proximal.baseline_values.float())  # equal to the values if the critic is V
    heads = 1 if config.ratio == "joint" else behaviour.shape[1]
    joint = estimate.advantages
    if config.leave_one_out:
        joint = leave_one_out(joint, batch.valid, batch.seed_index)
    per_head = head_advantages(batch.from_rows(joint), values, baseline, heads)
    advantages = normalize(per_head, unforced)
    if config.objective == "decoupled":
        weight = (proximal.log_probs - behaviour).sum(-1).exp().clamp(max=WEIGHT_LIMIT)
        advantages = advantages * weight[:, None]
    rescaling = scale.update(returns, network.value_output)
    targets = Targets(
        advantages=advantages,
        returns=scale.normalize(returns),
        proximal_values=rescaling(proximal.values.float()),
        proximal_log_probs=proximal.log_probs,
        behaviour_log_probs=behaviour,
        counted=network.counted[batch.actions[:, 0]] & unforced[:, None],
        unforced=unforced,
    )
    return targets, values


@torch.no_grad()
def batch_metrics(
    network: FactoredRecurrentActorCritic,
    proximal: Evaluation,
    values: Tensor,
    targets: Targets,
    batch: Batch,
    version: int,
) -> dict[str, Tensor]:
    """Return metrics of a batch before any optimizer step; `ratio_error` is NaN without steps of these weights."""
    log_ratio = (targets.proximal_log_probs - targets.behaviour_log_probs).sum(-1)
    # The state of an episode that began with older weights is theirs; burn-in replays it with the current ones.
    versions = (batch.first_version == version)[:, None].expand_as(batch.valid)
    fresh = targets.unforced & batch.from_rows(versions)
    error = (log_ratio.exp() - 1.0).abs().masked_fill(~fresh, 0.0).amax()
    returns = network.value_normalizer.denormalize(targets.returns)
    metrics = {
        "explained_variance": losses.explained_variance(values, returns),
        "lag_kl": losses.k3(log_ratio, targets.unforced),
        "ratio_error": torch.where(fresh.any(), error, torch.full_like(error, torch.nan)),
        "forced_fraction": 1.0 - targets.unforced.double().mean(),
        "value_estimate": values.mean(),
        "value_mean": network.value_normalizer.mean,
        "value_scale": network.value_normalizer.std,
    }
    spec = network.spaces.action
    total, steps = proximal.entropies.masked_fill(~targets.counted, 0.0).sum(0), targets.counted.sum(0)
    entropy = total / steps.clamp(min=1)
    normalized = slice(spec.num_categorical or None)  # entropies of continuous heads are in nats
    metrics["entropy"] = total[normalized].sum() / steps[normalized].sum().clamp(min=1)
    if network.config.is_recurrent:
        metrics["hidden_norm"] = proximal.hidden.norm(dim=-1).mean()
    metrics |= {f"memory/{name}": proximal.memory[:, k].mean() for k, name in enumerate(network.core.statistics)}
    metrics |= {f"entropy/{name}": entropy[part].mean() for name, part in ranges(spec.names)}
    return metrics | choice_shares(spec, batch.actions, network.relevance[batch.actions[:, 0]])


def ranges(names: Sequence[str]) -> list[tuple[str, slice]]:
    """Divide `names` into at most `MOST_BARS` ranges of neighbours, whose metrics are one: many names would be many
    series in every dashboard."""
    width = -(-len(names) // MOST_BARS)
    starts = range(0, len(names), width)
    parts = [slice(start, min(start + width, len(names))) for start in starts]
    return [(names[p.start] if width == 1 else f"{names[p.start]}..{names[p.stop - 1]}", p) for p in parts]


def choice_shares(spec: ActionSpec, actions: Tensor, relevant: Tensor) -> dict[str, Tensor]:
    """`op/CHOICE` of the first head, and `choice/HEAD/CHOICE` of the next ones: the share of each choice, or range of
    choices, of the steps at which the head was relevant. `actions [N, H]`, `relevant [N, H]`."""
    found: dict[str, Tensor] = {}
    for k, head in enumerate(spec.heads[: min(spec.num_categorical, MOST_HISTOGRAMS)]):
        parts = ranges(head.choices)
        bars = torch.zeros(len(parts), dtype=torch.double, device=actions.device)
        bars.index_add_(0, actions[:, k] // parts[0][1].stop, relevant[:, k].double())
        family = f"choice/{head.name}" if k else "op"
        shares = bars / relevant[:, k].sum().clamp(min=1)
        found |= {f"{family}/{name}": share for (name, _), share in zip(parts, shares, strict=True)}
    return found
