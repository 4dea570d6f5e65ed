"""Metrics of an update: of its batch before any optimizer step, and of its ratios over all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.types.actions import ActionSpec
from learner.config import LearnerConfig
from learner.ppo.batch import Batch
from learner.ppo.objective import joined, k3, policy_losses
from learner.ppo.targets import Targets

MOST_BARS = 32  # choices or heads with metrics of their own; where there are more, neighbours share them
MOST_HISTOGRAMS = 8  # heads whose choices are counted


@torch.no_grad()
def batch_metrics(
    network: FactoredRecurrentActorCritic,
    proximal: Evaluation,
    values: Tensor,
    targets: Targets,
    batch: Batch,
    version: int,
) -> dict[str, Tensor]:
    """Return metrics of a batch before any optimizer step, whose proximal values are `values [N]` in units of the
    return; `ratio_error` is NaN without steps of these weights."""
    log_ratio = (targets.proximal_log_probs - targets.behaviour_log_probs).sum(-1)
    # The state of an episode that began with older weights is theirs; burn-in replays it with the current ones.
    versions = (batch.first_version == version)[:, None].expand_as(batch.valid)
    fresh = targets.unforced & batch.from_rows(versions)
    error = (log_ratio.exp() - 1.0).abs().masked_fill(~fresh, 0.0).amax()
    returns = network.value_normalizer.denormalize(targets.returns)
    metrics = {
        "advantage_std": (returns - values).std(unbiased=False),
        "explained_variance": explained_variance(values, returns),
        "lag_kl": k3(log_ratio, targets.unforced),
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


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var[returns - values] / Var[returns]; 0 when the returns have no variance."""
    variance, residual = returns.var(unbiased=False), (returns - values).var(unbiased=False)
    return torch.where(variance > 1e-12, 1.0 - residual / variance.clamp(min=1e-12), torch.zeros_like(variance))


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


@torch.no_grad()
def step_metrics(
    log_probs: Tensor,
    t: Targets,
    live: Tensor,
    config: LearnerConfig,
    denominator: Tensor,
    heads: Sequence[str],
    continuous: int = 0,
) -> dict[str, Tensor]:
    """Return ratios, clip fractions, KL and the policy's loss of each head over the evaluated steps before
    the KL stop: `log_probs [M, H]`, `live [M]`. With one ratio for all heads, there are no losses of heads.

    `denominator` is that of the policy's terms, summed over the minibatches.
    """
    log_ratio = joined(log_probs - t.behaviour_log_probs, continuous)
    decoupled, joint_ratio = config.objective == "decoupled", config.ratio == "joint"
    moved = joined(log_probs - t.proximal_log_probs, continuous) if decoupled else log_ratio
    heads = (*heads[:-continuous], "continuous") if continuous else heads
    if joint_ratio:
        moved = moved.sum(-1, keepdim=True)
    counted, seen = t.counted[:, : len(heads)] & live[:, None], live.sum().clamp(min=1)
    active = counted.sum(0).clamp(min=1)
    clipped = ((moved.exp() - 1.0).abs() > config.clip) & counted
    kl = (log_ratio.exp() - 1.0 - log_ratio).masked_fill(~counted, 0.0).sum(0) / active
    joint = log_ratio.sum(-1).exp().masked_fill(~t.unforced, 1.0).masked_fill(~live, 0.0)
    metrics = {"ratio_mean": joint.sum() / seen, "ratio_max": joint.amax()}
    clip_fraction = clipped.sum(0) / active
    metrics |= {f"clip_fraction/{name}": clip_fraction[part].mean() for name, part in ranges(heads)}
    metrics |= {f"kl/{name}": kl[part].mean() for name, part in ranges(heads)}
    if joint_ratio:
        return metrics
    losses = policy_losses(log_probs, t, t.counted & live[:, None], config, denominator, continuous)
    losses = losses.nan_to_num(posinf=0.0, neginf=0.0)
    return metrics | {f"loss_policy/{name}": losses[part].sum() for name, part in ranges(heads)}
