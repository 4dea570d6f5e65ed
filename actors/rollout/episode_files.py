"""Episodes as files: one episode each, as `actors.codec` encodes it, with the suffix `.episode`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from actors.codec import MAX_EPISODE_BYTES, decode_episode
from actors.errors import UserError
from actors.types.episode import Episode, InvalidEpisode

SUFFIX = ".episode"


def write_bytes(path: Path, encoded: bytes) -> None:
    """Write an encoded episode; the file appears under its name only when it is complete. Raises `OSError`."""
    partial = path.with_name(f".{os.getpid()}.partial")
    partial.write_bytes(encoded)
    partial.replace(path)


def read_episode(path: Path) -> Episode:
    """Read an episode. Raises `InvalidEpisode`, whose message says why it cannot be used."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_EPISODE_BYTES + 1)
    except OSError as error:
        raise InvalidEpisode(f"it cannot be read ({error.strerror})") from error
    return decode_episode(data)


def find_episodes(paths: Iterable[Path]) -> list[Path]:
    """Return these files and, of folders, the files with the suffix `.episode`, in the order of their names. Raises
    `UserError` for what does not exist, and for a folder without such files."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob(f"*{SUFFIX}"))
            if not inside:
                raise UserError(f"{path} holds no {SUFFIX} files: give the folder of an export")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"there is no file {path}: give {SUFFIX} files, or folders of them")
    return list(dict.fromkeys(found))
