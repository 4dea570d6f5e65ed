"""`EndpointPool`: runs and restarts the endpoint of a run with external environments, in place of a pool of actors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from actors.errors import UserError
from actors.process_environment import NO_GPU
from actors.transport.retry import Backoff

STOP_S = 15.0  # for the endpoint to ship its last episodes


class EndpointPool:
    """Keeps one endpoint for the run in `run_dir`. Its log goes to `endpoint.log` there; it ends with this process."""

    def __init__(self, run_dir: Path, redis: str, note: Callable[[str], None]) -> None:
        self._run_dir, self._note = run_dir, note
        self._redis = redis  # goes through a pipe, because it may hold a password
        self._backoff = Backoff()
        self.restarts = 0
        self.size = 1
        self._process = self._start()

    @property
    def alive(self) -> int:
        """1 if the endpoint runs, else 0."""
        return int(self._process.poll() is None)

    def counts(self) -> dict[str, float]:
        """Return the pool's size and restarts as metrics."""
        return {"actors_alive": self.alive, "actors_wanted": self.size, "actor_restarts": self.restarts}

    def pump(self, timeout_s: float) -> None:
        """Wait for `timeout_s`. Restart the endpoint if it has ended; raise `UserError` if it refused its settings."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return
        if status == 2:
            lines = (self._run_dir / "endpoint.log").read_text(errors="replace").strip().splitlines()
            raise UserError(f"the endpoint could not start: {lines[-1] if lines else 'see endpoint.log'}")
        if not self._backoff.due:
            time.sleep(timeout_s)
            return
        self._backoff.fail()
        self.restarts += 1
        self._note(f"the endpoint ended with status {status} and is restarted; its log is endpoint.log")
        self._process = self._start()

    def stop(self, at_once: bool = False) -> None:
        """Stop the endpoint, which ships its last episodes."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._run_dir / "endpoint.log").open("ab") as log:
            process = subprocess.Popen(
                # -P: a `deploy.py` in the working directory is the user's.
                [sys.executable, "-P", "-m", "deploy.launch.endpoint", str(self._run_dir)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | NO_GPU,
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, which the next `pump` reports
            process.stdin.write(f"{self._redis}\n".encode())
            process.stdin.flush()
        return process
