"""Advice about settings that the user chose himself, given when a run starts."""

from __future__ import annotations

from actors.gym.make import gym_horizon
from deploy.config.schema import PRESETS, Config, closest_preset

USUAL_LR = 2.5e-4  # of a recurrent policy


def advice(config: Config) -> list[str]:
    """Return a line for each setting that may surprise. What the closest preset chose gets none."""
    chosen = PRESETS[closest_preset(config)].in_force.learner
    given, found = config.in_force.learner, list[str]()
    if given.gamma == 1 and not config.on_seed_hosts:
        found.append(
            "learner.gamma is 1, which suits the short episodes of seed hosts: for other environments, start from "
            f"preset general, whose gamma is {PRESETS['general'].learner.gamma}"
        )
    if not config.policy.is_recurrent:
        return found
    if given.lr != chosen.lr and given.lr is not None and given.lr > USUAL_LR:
        found.append(
            f"learner.lr is {given.lr:g}, higher than usual for a recurrent policy: if training is unstable, try "
            "2.5e-4, then 1e-4"
        )
    if given.update_epochs != chosen.update_epochs and (given.update_epochs or 1) > 1:
        found.append(
            f"learner.update_epochs is {given.update_epochs}: a recurrent policy supports several passes, whose effect "
            "the clip limits; if training is unstable, try 1"
        )
    return found + _cuts(config, given.chunk_length if given.chunk_length != chosen.chunk_length else None)


def _cuts(config: Config, chunk_length: int | None) -> list[str]:
    """Return what is to say about chunks of a length that the user chose, and about segments."""
    segment, found = config.gym.max_segment_steps, list[str]()
    horizon = gym_horizon(config.gym) if config.gym.id else None  # of an episode, if it is known
    if config.on_seed_hosts:
        horizon = config.env.max_horizon_epochs
    lost = "no gradient crosses a cut, so that longer dependencies are learned poorly"
    if chunk_length is not None and (horizon is None or horizon > chunk_length):
        found.append(
            f"episodes of {_length(horizon, chunk_length)} steps are cut into chunks of {chunk_length} "
            f"(learner.chunk_length): {lost}, and chunks start from states of older weights, refreshed by "
            f"{config.learner.burn_in} steps of learner.burn_in. If memory allows, use longer chunks, or null for none"
        )
    chosen = PRESETS[closest_preset(config)].gym.max_segment_steps
    if config.gym.id and horizon is not None and horizon > segment != chosen:
        found.append(
            f"episodes of {_length(horizon, segment)} steps are cut into segments of {segment} "
            f"(gym.max_segment_steps): {lost}, and returns beyond it are estimated by the critic. Raise it if such "
            "dependencies matter, with learner.batch_steps or fewer environments, so that segments do not grow too old"
        )
    return found


def _length(horizon: int | None, cut: int) -> str:
    return f"more than {cut}" if horizon is None else f"up to {horizon}"
