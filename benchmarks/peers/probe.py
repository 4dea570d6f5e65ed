"""A small environment in which each claim about a library is tried, and the report of the claims.

Needs Gymnasium and NumPy only, because every library is installed into an environment of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

ACTIONS = ("discrete", "factored", "box", "mixed")
EPISODE_STEPS, CLAIM_S = 20, 240


class ProbeEnv(gymnasium.Env[Any, Any]):
    """Random observations, rewards of 0, and episodes of 20 steps.

    `actions`: `discrete` (3 choices), `factored` (3 and 4), `box` (2 dimensions) or `mixed` (3 choices and a Box of 2).
    In step t, choice t % 3 of the first head is illegal. The mask is in `info["action_mask"]`, in `action_masks()` and,
    if `mask_in_obs`, in the observation, which then is a Dict. `counts` has the steps and the illegal ones of all
    environments of this process.
    """

    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self, actions: str = "discrete", mask_in_obs: bool = False) -> None:
        box = spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.action_space: spaces.Space[Any] = {
            "discrete": spaces.Discrete(3),
            "factored": spaces.MultiDiscrete([3, 4]),
            "factored_tuple": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(4))),
            "box": box,
            "mixed": spaces.Tuple((spaces.Discrete(3), box)),
        }[actions]
        self.actions, self.mask_in_obs, self.render_mode = actions, mask_in_obs, None
        self.choices = {"discrete": 3, "factored": 7, "factored_tuple": 7, "box": 0, "mixed": 3}[actions]
        plain = spaces.Box(-5.0, 5.0, (4,), np.float32)
        mask = spaces.Box(0.0, 1.0, (self.choices,), np.float32)
        self.observation_space = spaces.Dict(action_mask=mask, observations=plain) if mask_in_obs else plain
        self.t = 0

    def action_masks(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        mask = np.ones(self.choices, dtype=np.bool_)
        if self.choices:
            mask[self.t % 3] = False
        return mask

    def _look(self) -> Any:
        seen = self.np_random.standard_normal(4).astype(np.float32).clip(-5, 5)
        return (
            {"action_mask": self.action_masks().astype(np.float32), "observations": seen} if self.mask_in_obs else seen
        )

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks()} if self.choices else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._look(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.counts["steps"] += 1
        if self.choices:
            first = action if self.actions == "discrete" else action[0]
            self.counts["illegal"] += int(np.asarray(first).item()) == self.t % 3
        self.t += 1
        return self._look(), 0.0, self.t >= EPISODE_STEPS, False, self._info()

    def render(self) -> None:
        return None


def illegal_share() -> str:
    """Describe how many steps of the last run were illegal, or that it trained where none can be."""
    if "illegal" not in ProbeEnv.counts:
        return "trained"
    return f"{ProbeEnv.counts['illegal']} of {ProbeEnv.counts['steps']} steps illegal"


Claim = tuple[str, Callable[[], str]]
"""What is claimed, and a run of it, which returns a remark or raises."""


def _late(signum: int, frame: Any) -> None:
    raise TimeoutError(f"no result after {CLAIM_S} s")


def report(packages: Sequence[str], claims: Sequence[Claim]) -> None:
    """Try all claims and print one line of JSON for each: `works` with the remark, or the first line of the error."""
    print(json.dumps({"versions": {name: version(name) for name in packages}}), flush=True)
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGALRM, _late)
    for name, run in claims:
        ProbeEnv.counts.clear()
        noise = io.StringIO()
        signal.alarm(CLAIM_S)
        try:
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                result = {"claim": name, "works": True, "remark": run()}
        except (Exception, SystemExit) as error:  # what a library cannot do, it says in many ways
            lines = str(error).strip().splitlines() or [""]
            result = {"claim": name, "works": False, "remark": f"{type(error).__name__}: {lines[0][:160]}"}
        signal.alarm(0)
        print(json.dumps(result), flush=True)
    sys.stdout.flush()
    os._exit(0)  # some libraries leave threads and processes that keep the interpreter alive
