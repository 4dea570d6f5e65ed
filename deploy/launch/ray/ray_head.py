"""`ray start` for a head node whose GCS stores its state in Redis, without the password on any command line.

Ray passes that password as an argument to the GCS server, the raylet and every worker, so that all users of the machine
can read it. Here only the GCS server gets it, in its environment.

    python -m deploy.launch.ray.ray_head PASSWORD_FILE --head --redis-username=default ...   (other options go to `ray
start`)"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.text_file import as_utf8

PASSWORD = "--redis_password="  # a flag of the GCS server, parsed by gflags
FROM_ENVIRONMENT, VARIABLE = "--fromenv=redis_password", "FLAGS_redis_password"  # names defined by gflags


def without_password(start: Callable[..., Any], password: str) -> Callable[..., Any]:
    """Wrap Ray's `start_ray_process` to remove the password from commands. Raises `RuntimeError` if that fails."""

    def start_process(command: list[str], *args: Any, env_updates: dict[str, str] | None = None, **kwargs: Any) -> Any:
        if PASSWORD + password in command:
            command = [FROM_ENVIRONMENT if word == PASSWORD + password else word for word in command]
            env_updates = (env_updates or {}) | {VARIABLE: password}
        if any(password in word for word in command):
            raise RuntimeError(f"this version of Ray puts the password on the command line of {command[0]}")
        return start(command, *args, env_updates=env_updates, **kwargs)

    return start_process


def main(argv: list[str]) -> None:
    """Run `ray start` with the password from a file."""
    if len(argv) < 2 or "--head" not in argv:
        sys.exit("usage: python -m deploy.launch.ray.ray_head PASSWORD_FILE --head [OPTION OF `ray start`]...")
    try:
        password = as_utf8(Path(argv[0]).read_bytes()).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"cannot read the password of GCS's Redis from {argv[0]} ({error})")
    if not password:
        sys.exit(f"{argv[0]} is empty: it must hold the password of GCS's Redis")

    from ray._private import services
    from ray.scripts import scripts

    services.start_ray_process = without_password(services.start_ray_process, password)
    start_raylet = services.start_raylet
    # Raylets and workers never connect to that Redis; on other machines they have no password either.
    services.start_raylet = lambda *args, **kwargs: start_raylet(*args, **kwargs | {"redis_password": ""})
    scripts.start.main(args=[*argv[1:], f"--redis-password={password}"], prog_name="ray start")


if __name__ == "__main__":
    main(sys.argv[1:])
