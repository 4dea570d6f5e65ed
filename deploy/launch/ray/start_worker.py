"""What the raylet runs to start a worker process, in the place of Ray's `setup_worker.py`.

It asks the fork server for the process, and lives as long as that. Without a fork server it runs Ray's own file. It
imports only what loads within hundredths of a second.
"""

import json
import os
import socket
import struct
import sys

ADDRESS = "TAMIYO_FORK_SERVER"
"""Environment variable: path of the fork server's socket."""
SETUP = "TAMIYO_SETUP_WORKER"
"""Environment variable: path of Ray's `setup_worker.py`."""

SIZE = struct.Struct("!I")
"""The length of the request, which precedes it."""
FORKED = b"f"
"""What the server answers when the worker exists; later, one byte is the worker's status."""
JOB, FIRST_JOB = "RAY_JOB_ID", "01000000"
"""Ray's environment variable of a worker's job, which it reads when it is imported; the only job of a local Ray."""


def main() -> None:
    """Wait for the worker to end, and end with its status."""
    request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            if os.environ.get(JOB) != FIRST_JOB:
                raise OSError("not a worker of the run")
            connection.connect(os.environ[ADDRESS])
            socket.send_fds(connection, [SIZE.pack(len(request))], [1, 2])
            connection.sendall(request)
            if connection.recv(1) != FORKED:
                raise OSError("the fork server has ended")
        except OSError:
            os.execv(sys.executable, [sys.executable, os.environ[SETUP], *sys.argv[1:]])
        status = connection.recv(1)  # nothing if the server has ended
    os._exit(status[0] if status else 1)


if __name__ == "__main__":
    main()
