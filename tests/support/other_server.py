"""A Redis server other than the bundled one."""

from __future__ import annotations

from pathlib import Path

from deploy.launch.embedded_redis import EmbeddedRedis


class OtherServer(EmbeddedRedis):
    """An embedded server that runs the given binary."""

    def __init__(self, binary: Path) -> None:
        super().__init__()
        self._binary = binary
