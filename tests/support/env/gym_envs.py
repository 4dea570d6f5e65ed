"""Small Gymnasium environments whose every number is known, for tests of the fleet, the stream and the masks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import zlib
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register
from numpy.typing import NDArray

Info = dict[str, Any]


class Scripted(gymnasium.Env[NDArray[np.float32], Any]):
    """Length, kind of end, observations and rewards are functions of the seed and of the actions.

    The observation tells its own step in its last entry, counted from the reset, so that a test can see which one it
    looks at. Rewards differ by seed in scale.
    """

    def __init__(self, sizes: tuple[int, ...] = (3,), longest: int = 9, masks: str = "none") -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        one = len(sizes) == 1
        self.action_space: spaces.Space[Any] = spaces.Discrete(sizes[0]) if one else spaces.MultiDiscrete(sizes)
        self.sizes, self.longest, self.masks = sizes, longest, masks
        if masks == "method":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[np.float32], Info]:
        super().reset(seed=seed)
        self.seed = int(self.np_random.integers(2**31)) if seed is None else seed
        rng = np.random.default_rng(self.seed)
        self.length, self.truncates = int(rng.integers(1, self.longest + 1)), bool(rng.random() < 0.5)
        self.scale = float(10.0 ** rng.integers(-1, 3))
        self.count, self.history = 0, 0
        return self._look(), self._info()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        chosen = np.ravel(action)
        legal = np.split(self._mask(), np.cumsum(self.sizes)[:-1])
        assert all(part[a] for part, a in zip(legal, chosen, strict=True)), "an illegal action was taken"
        self.history = (self.history * 31 + int(chosen @ np.arange(1, len(chosen) + 1)) + 1) % 2**31
        self.count += 1
        over = self.count >= self.length
        reward = self.scale * float(np.random.default_rng((self.seed, self.count, self.history, 1)).standard_normal())
        return self._look(), reward, over and not self.truncates, over and self.truncates, self._info()

    def _look(self) -> NDArray[np.float32]:
        rng = np.random.default_rng((self.seed, self.count, self.history))
        return np.append(rng.standard_normal(3), self.count).astype(np.float32)

    def _mask(self) -> NDArray[np.bool_]:
        """Flat; at least one choice of each head is legal, but nothing after a termination."""
        if self.masks == "none":
            return np.ones(sum(self.sizes), dtype=np.bool_)
        if self.count >= self.length and not self.truncates:
            return np.zeros(sum(self.sizes), dtype=np.bool_)
        rng = np.random.default_rng((self.seed, self.count, self.history, 2))
        parts = [rng.random(n) < 0.5 for n in self.sizes]
        for part in parts:
            part[rng.integers(part.size)] = True
        return np.concatenate(parts)

    def _info(self) -> Info:
        mask = self._mask().astype(np.int8)
        if self.masks == "per_head":
            return {"action_mask": tuple(np.split(mask, np.cumsum(self.sizes)[:-1]))}
        return {"action_mask": mask} if self.masks == "info" else {}


class Continuous(gymnasium.Env[NDArray[np.float32], Any]):
    """Random observations; an episode of 6 steps. Every action must be in the action space."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[np.float32], Info]:
        super().reset(seed=seed)
        self.count = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        self.count += 1
        return self._look(), 1.0, False, self.count == 6, {}

    def _look(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Mixed(Continuous):
    """A Dict of a Discrete and of a Tuple of two Boxes."""

    action_space = spaces.Dict(
        gear=spaces.Discrete(3, start=1),
        hands=spaces.Tuple((spaces.Box(-1, 3, (), np.float32), spaces.Box(-1, 1, (1,), np.float32))),
    )


class Whole(Continuous):
    action_space = spaces.Box(-1, 1, (2,), np.int32)


class Endless(Continuous):
    action_space = spaces.Box(-np.inf, 1, (2,), np.float32)


class Constant(Continuous):
    """Pays 1 a step, whatever is done, for `length` steps, or for ever if that is 0. `instances` may exist at once."""

    action_space = spaces.Discrete(2)
    living = 0

    def __init__(self, length: int = 0, instances: int = 1000) -> None:
        assert Constant.living < instances, "the simulator is running already"
        Constant.living += 1
        self.length = length

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        self.count += 1
        return self._look(), 1.0, self.count == self.length, False, {}

    def close(self) -> None:
        Constant.living -= 1


def nap(folder: Path) -> str:
    """A command that ends after ten minutes, and that no other test has."""
    return f"sleep 600.{zlib.crc32(str(folder).encode())}"


class Simulated(Scripted):
    """Has a simulator, a tree of two processes that only `close` ends. Files in its folder make it fail, once each.

    It watches over its steps by an alarm signal, which Python has in the main thread alone.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(longest=4)
        self.folder = Path(folder)
        self.name = f"{os.getpid()}-{id(self)}"
        subprocess.Popen(["sh", "-c", f"{nap(self.folder)} & wait"], start_new_session=True)
        (self.folder / f"open-{self.name}").touch()
        signal.signal(signal.SIGALRM, self._give_up)
        print("the simulator is up")

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        time.sleep(20.0 if self._told("wait") else 0.005)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if self._told("exit"):
            os._exit(3)
        return super().step(action)

    def close(self) -> None:
        (self.folder / f"closed-{self.name}").touch()

    def _give_up(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the simulator does not answer")

    def _told(self, word: str) -> bool:
        flag = self.folder / word
        told = flag.exists()
        flag.unlink(missing_ok=True)
        return told


class Leaving(Scripted):
    """Ends its process in its third step."""

    taken = 0

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        Leaving.taken += 1
        if Leaving.taken == 3:
            os.write(2, b"the licence has expired\n")
            os._exit(3)
        return super().step(action)


class SlowReset(Scripted):
    """Its first reset is slow."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def reset(self, **kwargs: Any) -> tuple[NDArray[np.float32], Info]:
        time.sleep(self.seconds)
        self.seconds = 0.0
        return super().reset(**kwargs)


made: Any
for made in (Scripted, Continuous, Mixed, Whole, Endless, Constant, Simulated, Leaving, SlowReset):
    register(f"tests/{made.__name__}-v0", entry_point=made)
