"""A server with a password, until it is killed: HOST PORT FOLDER, where home/.tamiyo/gcs_redis_password holds it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.launch.embedded_redis import find_server


def main(host: str, port: str, folder: str) -> None:
    password = (Path(folder) / "home/.tamiyo/gcs_redis_password").read_text()
    settings = Path(folder) / "redis.conf"
    settings.write_text(f'port {port}\nbind {host}\nrequirepass {password}\nsave ""\ndir {folder}\n')
    os.execv(find_server(), [str(find_server()), str(settings)])


if __name__ == "__main__":
    main(*sys.argv[1:])
