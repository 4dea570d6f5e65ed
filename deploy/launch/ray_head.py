"""`ray start` of a head whose GCS keeps its state in a Redis, with the password on no command line.

Ray passes that password to the GCS server, to the raylet and by it to every worker as an argument, which all users of
the machine can read. Here the GCS server, which alone needs it, gets it in its environment.

    python -m deploy.launch.ray_head PASSWORD_FILE --head --redis-username=default ...     the rest goes to `ray start`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PASSWORD = "--redis_password="  # of the GCS server, which reads its flags by gflags
FROM_ENVIRONMENT, VARIABLE = "--fromenv=redis_password", "FLAGS_redis_password"  # gflags' own names


def without_password(start: Callable[..., Any], password: str) -> Callable[..., Any]:
    """Ray's `start_ray_process`, for commands without the password. Raises `RuntimeError` for one that still has it."""

    def start_process(command: list[str], *args: Any, env_updates: dict[str, str] | None = None, **more: Any) -> Any:
        if PASSWORD + password in command:
            command = [FROM_ENVIRONMENT if word == PASSWORD + password else word for word in command]
            env_updates = (env_updates or {}) | {VARIABLE: password}
        if any(password in word for word in command):
            raise RuntimeError(f"this version of Ray has the password on the command line of {command[0]}")
        return start(command, *args, env_updates=env_updates, **more)

    return start_process


def main(argv: list[str]) -> None:
    if len(argv) < 2 or "--head" not in argv:
        sys.exit("usage: python -m deploy.launch.ray_head PASSWORD_FILE --head [OPTION OF `ray start`]...")
    try:
        password = Path(argv[0]).read_text().strip()
    except OSError as error:
        sys.exit(f"cannot read the password of GCS's Redis from {argv[0]} ({error.strerror})")
    if not password:
        sys.exit(f"{argv[0]} is empty: it holds the password of GCS's Redis")

    from ray._private import services
    from ray.scripts import scripts

    services.start_ray_process = without_password(services.start_ray_process, password)
    start_raylet = services.start_raylet
    # Raylet and workers reach the GCS server and never its Redis: those of other machines have no password either.
    services.start_raylet = lambda *args, **more: start_raylet(*args, **more | {"redis_password": ""})
    scripts.start.main(args=[*argv[1:], f"--redis-password={password}"], prog_name="ray start")


if __name__ == "__main__":
    main(sys.argv[1:])
