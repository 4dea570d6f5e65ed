"""What the raylet runs in the place of Ray's dashboard agent, if a run has neither a dashboard nor a metrics port.

The agent takes more than a second of a core to start, while the run starts, and nothing would ask it. It says in files,
for which the raylet waits, that it has no ports, as Ray's own agent does in an installation without its dashboard, and
lives as long as the raylet. It imports only what loads within hundredths of a second.
"""

import os
import sys
import time

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
POLL_S = 1.0


def main() -> None:
    """Write the files, then wait for the raylet to end."""
    raylet = int(os.environ.get("RAY_RAYLET_PID") or os.getppid())  # which may have ended already
    given = dict(argument.split("=", 1) for argument in sys.argv if argument.startswith("--") and "=" in argument)
    for name in PORTS:
        path = os.path.join(given["--session-dir"], f"{name}_{given['--node-id']}")
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write("-1")
        os.replace(f"{path}.new", path)
    while os.getppid() == raylet:
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
