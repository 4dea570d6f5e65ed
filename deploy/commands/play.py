"""`tamiyo play`: play episodes of a trained policy in the environment of its run, and film one."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.errors import UserError, described
from deploy.config.parser import CommandParser
from deploy.config.schema import Config

if TYPE_CHECKING:
    from deploy.loaded_policy import LoadedPolicy

VIDEOS = (".gif", ".mp4")
FRAMES_PER_S = 30  # where an environment names no speed
MAX_FRAMES = 3000


def play(args: list[str]) -> int:
    """Play, and print the mean return with its interval. Raises `UserError`."""
    parser = CommandParser("play", "Play episodes of a trained policy in the environment of its run.")
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="RUN", help="run folder, or one of its checkpoints")
    parser.add_latest()
    add("--episodes", type=int, default=100, metavar="N", help="at least 2 (default: 100)")
    add("--seed", type=int, default=0, help="seed of the episodes (default: 0)")
    add("--sampled", action="store_true", help="sample actions, as in training, instead of taking the most likely ones")
    video_help = "film the first episode: .gif, or .mp4 with the extra `video`; the environment must render rgb_array"
    add("--video", type=Path, metavar="FILE", help=video_help)
    options = parser.parse_args(args)
    if options.episodes < 2 or options.seed < 0:
        raise UserError("give --episodes of at least 2, which an interval needs, and a --seed of at least 0")
    from actors.policy.saved import find_policy
    from deploy.loaded_policy import load_policy, run_config

    checkpoint = find_policy(options.checkpoint, options.latest)
    config = run_config(options.checkpoint)
    if config is None:
        raise UserError(f"{options.checkpoint} is in no run folder, whose settings name its environment: give one")
    if config.external.spaces:
        raise UserError(
            f"programs of their own play the environment of {options.checkpoint}: serve its policy to them, with "
            f"`tamiyo serve --checkpoint {options.checkpoint}`"
        )
    if options.video is not None:
        _check_video(options.video, config)
    seeds = episode_seeds(options.seed, options.episodes)
    print(f"{checkpoint}: {_returns(config, checkpoint, seeds, not options.sampled)}")
    if options.video is not None:
        print(_film(load_policy(checkpoint), options.video, seeds[0], not options.sampled))
    return 0


def episode_seeds(seed: int, count: int) -> list[int]:
    """Return the seeds of the episodes."""
    from actors.rng import Purpose, stream

    seeds: list[int] = stream(seed, 0, Purpose.COMPARISON).integers(0, 2**31, count).tolist()
    return seeds


def _returns(config: Config, checkpoint: Path, seeds: list[int], deterministic: bool) -> str:
    """Play an episode of each seed, several at once. Returns a line on their returns."""
    import torch

    from actors.policy.acting.policy import ActingPolicy
    from actors.policy.publish import from_weights
    from actors.policy.saved import read_weights
    from actors.rollout.sampler import make_sampler
    from actors.rollout.wave import Provenance
    from deploy.launch.process_settings import acting
    from deploy.report.numbers import number
    from deploy.report.statistics import mean_interval

    torch.set_num_threads(1)
    settings = acting(config)
    width = min(settings.actors.envs_per_actor, len(seeds))
    actors = replace(settings.actors, envs_per_actor=width, gpus_per_actor=0.0)
    sampler = make_sampler(replace(settings, actors=actors), 0, config.run.seed, None)
    try:
        weights = read_weights(checkpoint)
        policy = ActingPolicy(from_weights(weights, spaces=sampler.spaces))
        source = Provenance(weights.version, weights.generation, 1, config.run.seed)
        played = sampler.play(policy, source, seeds, deterministic)
    finally:
        sampler.close()
    returns = [episode["return"] for episode in played]
    mean, low, high, lowest, highest = (
        number(x, sign="-") for x in (*mean_interval(returns), min(returns), max(returns))
    )
    cut = sum(not episode.get("ended", True) for episode in played)
    return (
        f"{len(returns)} episodes, mean return {mean} (95% interval {low} to {high}), lowest {lowest}, "
        f"highest {highest}" + (f"; {cut} did not end and were cut" if cut else "")
    )


def _check_video(path: Path, config: Config) -> None:
    """Raise `UserError` for what would fail once everything has been played."""
    if path.suffix not in VIDEOS:
        raise UserError(f"--video is {path}: give a file name that ends in {' or '.join(VIDEOS)}")
    if not path.parent.is_dir():
        raise UserError(f"folder {path.parent} does not exist: create it, or write to another folder")
    if not config.gym.id:
        raise UserError("only Gymnasium environments are filmed: draw an episode with `tamiyo rollout RUN --picture`")
    if path.suffix == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise UserError("mp4 needs imageio: pip install 'tamiyo[video]', or give a name that ends in .gif")


def _film(policy: LoadedPolicy, path: Path, seed: int, deterministic: bool) -> str:
    """Play an episode and write its frames. Returns a line on the file. Raises `UserError`."""
    plain = policy.make_env()
    plain.close()
    if "rgb_array" not in plain.metadata.get("render_modes", []):
        raise UserError(f"{policy.env_id} does not render rgb_array: leave --video out")
    env = policy.make_env(render_mode="rgb_array")
    try:
        frames, total = list[Any](), 0.0
        (obs, info), over = env.reset(seed=seed), False
        policy.reset(seed)
        while not over and len(frames) < MAX_FRAMES:
            frames.append(_frame(env, policy.env_id))
            obs, reward, terminated, truncated, info = env.step(
                policy.act(obs, info.get("action_mask"), deterministic=deterministic)
            )
            total, over = total + reward, terminated or truncated
        frames.append(_frame(env, policy.env_id))
    finally:
        env.close()
    _write(path, frames, env.metadata.get("render_fps") or FRAMES_PER_S)
    return f"{path}: {len(frames)} frames, return {total:g}"


def _frame(env: Any, env_id: str) -> Any:
    """Return a frame, `[H, W, 3]` uint8. Raises `UserError`."""
    try:
        frame = env.render()
    except Exception as error:  # such as a missing graphics library
        raise UserError(f"{env_id} cannot be rendered: {described(error)}") from error
    if getattr(frame, "dtype", None) != "uint8" or frame.ndim != 3 or frame.shape[2] != 3:
        raise UserError(f"{env_id} rendered a {type(frame).__name__}: return a frame, [height, width, 3] of uint8")
    return frame


def _write(path: Path, frames: list[Any], fps: float) -> None:
    try:
        if path.suffix == ".gif":
            from PIL import Image

            first, *rest = map(Image.fromarray, frames)
            first.save(path, save_all=True, append_images=rest, duration=1000 / fps, loop=0)
        else:
            import imageio.v3

            imageio.v3.imwrite(path, frames, fps=fps, macro_block_size=2)  # else sizes are rounded to multiples of 16
    except OSError as error:
        raise UserError(f"cannot write the video {path}: {error}") from error
