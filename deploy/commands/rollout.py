"""`tamiyo rollout`: play one episode of a trained policy or of a rule and print its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.config import EnvConfig
from actors.env.episode.timeline import Timeline
from actors.env.rendering.palette import OPS, STAGES, STYLE
from actors.env.seed_fleet import make_fleet
from actors.errors import UserError
from actors.policy.baselines import NeverGrow
from actors.rollout.wave import Policy, Provenance, run_wave
from actors.rules.names import is_rule, rule_policy
from actors.slots.spaces import seed_spaces
from actors.types.spaces import Spaces
from deploy.loaded_policy import run_config
from learner.run.checkpoint import load_network

PICTURE_SUFFIXES = (".png", ".svg")
PICTURE_IN = 5.6  # width, at which texts can be read on a phone and on a page
BAR = 10  # width of the accuracy bar, in characters
ACTIVE = ("GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED")


def check_picture(path: Path | None) -> None:
    """Raise `UserError` if a picture cannot be written to a file of that name."""
    if path is not None and path.suffix not in PICTURE_SUFFIXES:
        raise UserError(f"--picture is {path}: give a file name that ends in {' or '.join(PICTURE_SUFFIXES)}")


def show_rollout(
    policy: str,
    *,
    task: str | None = None,
    seed: int = 0,
    slots: int | None = None,
    width: int | None = None,
    price: float | None = None,
    compute_price: float | None = None,
    sampled: bool = False,
    picture: Path | None = None,
    console: Console | None = None,
) -> int:
    """Play an episode of a checkpoint or a rule and print its timeline, greedily unless `sampled`; also draw it if a
    picture is asked for.

    The environment is the one of the checkpoint's run, or the default one for a rule or a checkpoint outside a run
    folder. Raises `UserError` for impossible arguments.
    """
    check_picture(picture)
    if seed < 0:
        raise UserError(f"--seed is {seed}: it cannot be negative")
    if slots is not None and slots < 1:
        raise UserError(f"--slots is {slots}: a host has at least one slot in its stream")
    checkpoint = None if is_rule(policy) and not Path(policy).exists() else Path(policy)
    config, run_seed = (EnvConfig(), 0) if checkpoint is None else environment_of(checkpoint)
    given: dict[str, Any] = {
        "tasks": task and (task,),
        "slots": slots,
        "host_width": width,
        "points_per_doubling": price,
        "points_per_compute_doubling": compute_price,
    }
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    if checkpoint is None:
        player: Policy = rule_policy(policy, seed_spaces(config.total_slots))
    else:
        config = replace(config, profile=_profile(load_network(checkpoint).spaces))
        player = load_network(checkpoint, config.total_slots)
    fleet = make_fleet(config, 1, run_seed)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=run_seed)
    run_wave(fleet, player, [seed], source, deterministic=not sampled)
    episode = fleet.timelines()[0]
    console = console or Console(highlight=False)
    # Wrapped lines in a narrow terminal are more useful than truncated columns.
    console.width = max(console.width, 66 + 42 * config.total_slots)
    console.print(_headline(episode, sampled))
    console.print(timeline_table(episode, episode.lanes))
    if picture is not None:
        never = NeverGrow(seed_spaces(config.total_slots, config.profile))
        run_wave(fleet, never, [seed], source, deterministic=True)
        draw(episode, fleet.timelines()[0].accuracy, picture)
    return 0


def draw(episode: Timeline, never_grow: list[float], path: Path) -> None:
    """Draw an episode, and the same host without growth, to a file. Raises `UserError` if it cannot be written."""
    import matplotlib  # takes a while to load, which printing does not need

    from actors.env.rendering.timeline_chart import draw_episode

    try:
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": "tamiyo"}):  # the file is the same each time
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure = draw_episode(episode, never_grow, PICTURE_IN, every_slot=False)
            figure.savefig(path, facecolor="white", metadata=metadata)
    except OSError as error:
        raise UserError(f"cannot write the picture {path}: {error.strerror}") from error


def environment_of(checkpoint: Path, otherwise: EnvConfig | None = None) -> tuple[EnvConfig, int]:
    """Return the environment and the run seed of the checkpoint's run; outside a run folder, `otherwise` (by default
    that of preset `tamiyo`) and 0."""
    config = run_config(checkpoint)
    return (config.env, config.run.seed) if config is not None else (otherwise or EnvConfig(), 0)


def _profile(spaces: Spaces) -> Literal["tamiyo", "classic"]:
    profiles: tuple[Literal["tamiyo", "classic"], ...] = ("tamiyo", "classic")
    for profile in profiles:
        if spaces.slots and seed_spaces(spaces.slots, profile).hash == spaces.hash:
            return profile
    raise UserError(
        "this checkpoint was not trained in the seed-training environment: only such policies have a timeline; "
        "`tamiyo play RUN` plays others"
    )


def _headline(episode: Timeline, sampled: bool) -> Text:
    epochs = len(episode.ops)
    model, compute = sum(episode.doublings[-1:]), sum(episode.compute_doublings[-1:])
    return Text.assemble(
        ("task ", "dim"),
        (episode.task, "bold"),
        (f"   seed {episode.seed}   {'sampled' if sampled else 'deterministic'}   {epochs} epochs   ", "dim"),
        (f"accuracy {episode.accuracy[0]:.1f} > {episode.accuracy[-1]:.1f}", "bold"),
        (f"   {episode.host}   doublings {model:.2f}, of compute {compute:.2f}   ", "dim"),
        (f"J {sum(episode.shares):+.2f}", "bold"),
    )


def timeline_table(episode: Timeline, lanes: Sequence[str]) -> Table:
    """One row per epoch: the accuracy after it, the decision, and the content of each slot, named by `lanes`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", caption_justify="left")
    table.caption = (
        "slots: blueprint, stage, alpha; contribution in points and share of healthy gradients, where known\n"
        "doublings: of the parameters of the model that would be kept; compute: of the FLOPs of the whole training"
    )
    for name in ("epoch", "accuracy", "decision", *lanes, "doublings", "compute"):
        number = name in ("epoch", "doublings", "compute")
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    for t, op in enumerate(episode.ops):
        where = f" {lanes[episode.op_slots[t]]}" if episode.op_slots[t] >= 0 else ""
        table.add_row(
            str(t + 1),
            _accuracy(episode.accuracy[t], episode.accuracy[t + 1]),
            Text(op + where, style="dim" if op == "WAIT" else OPS.get(op, "")),
            *(_slot(episode, slot, t) for slot in range(len(lanes))),
            f"{episode.doublings[t]:.2f}",
            f"{episode.compute_doublings[t]:.2f}",
        )
    return table


def _accuracy(before: float, after: float) -> Text:
    """An accuracy bar with the value and its change; empty if the accuracy is unknown."""
    if isnan(after):
        return Text("")
    bar = "█" * round(after / 100 * BAR)
    change = "" if isnan(before) else f"{after - before:+5.1f}"
    return Text.assemble((f"{bar:<{BAR}}", OPS["FOSSILIZE"]), f" {after:5.1f} ", (change, "dim"))


def _slot(episode: Timeline, slot: int, t: int) -> Text:
    stage = episode.stages[slot][t]
    if stage == "DORMANT":
        return Text("·", style="dim")
    name = f"{episode.blueprints[slot][t]} " if stage in ACTIVE else ""
    contribution, health = episode.contributions[slot][t], episode.gradient_health[slot][t]
    return Text.assemble(
        (f"{name}{stage.lower()}", STAGES[stage]),
        (f" {episode.alphas[slot][t]:.2f}", "dim"),
        "" if contribution is None else f" {contribution:+.1f}",
        ("" if health is None else f" {health:.0%}", "dim"),
    )
