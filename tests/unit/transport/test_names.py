"""Invalid names of runs and actors are refused before anything is written."""

from __future__ import annotations

import pytest

from actors.errors import UserError
from actors.transport.base import EpisodeHeader
from actors.transport.redis import connect
from actors.types.episode import InvalidEpisode
from deploy.config.schema import RunConfig

INVALID_NAMES = ("my run", " ", "a b/c", "a}b", "{a}", "a:b", "-a", ".a", "..", "é", "a\nb", "a\x1b[1mb", "a" * 101)


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_invalid_names_are_refused_at_the_start(name: str) -> None:
    with pytest.raises(UserError, match="ASCII letters, digits") as raised:
        RunConfig(name=name)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="ASCII letters, digits"):
        connect("redis://127.0.0.1:1/0", None, name)
    for run, actor in ((name, "a"), ("run", name)):
        with pytest.raises(InvalidEpisode):
            EpisodeHeader(f"{run}/{actor}/0/1", 1, 0, 0)
