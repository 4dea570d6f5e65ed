"""`EndpointPool`: runs and restarts the endpoint of a run with external environments, in place of a pool of actors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from actors.errors import UserError
from actors.transport.backoff import Backoff
from actors.transport.redis import PASSWORD_VARIABLE
from actors.workers.worker_pool import PoolTotals
from deploy.config.yaml import without_password

STOP_S = 15.0  # for the endpoint to ship its last episodes


class EndpointPool:
    """Keeps one process of `tamiyo actors` for the run in `run_dir`. Its log goes to `endpoint.log` there."""

    def __init__(self, run_dir: Path, redis: str, namespace: str, note: Callable[[str], None]) -> None:
        self._run_dir, self._note = run_dir, note
        parts = urlsplit(redis)
        self._environment = dict(os.environ)
        if parts.password:  # never on a command line
            self._environment[PASSWORD_VARIABLE] = unquote(parts.password)
            redis = without_password(redis)
        self._command = [sys.executable, "-m", "deploy.cli", "actors", "--config", str(run_dir / "config.yaml")]
        self._command += ["--run.name", namespace, "--run.redis", redis]
        self._backoff = Backoff()
        self.totals = PoolTotals()
        self.size = 1
        self._process = self._start()

    @property
    def alive(self) -> int:
        """1 if the endpoint runs, else 0."""
        return int(self._process.poll() is None)

    def counts(self) -> dict[str, float]:
        """Return the pool's size and restarts as metrics."""
        return {"actors_alive": self.alive, "actors_wanted": self.size, "actor_restarts": self.totals.restarts}

    def pump(self, timeout_s: float) -> None:
        """Restart the endpoint if it has ended. Raises `UserError` if it refused its settings."""
        status = self._process.poll()
        if status is None:
            return
        if status == 2:
            raise UserError(f"the endpoint could not start: {self._last_line()}")
        if not self._backoff.due:
            return
        self._backoff.fail()
        self.totals.restarts += 1
        self._note(f"the endpoint ended with status {status} and is restarted; its log is endpoint.log")
        self._process = self._start()

    def autoscale(self, free_resources: Callable[[], Mapping[str, float]]) -> None:
        """Do nothing; there is one endpoint."""

    def release_one(self) -> None:
        """Do nothing; the endpoint reserves no resources."""

    def stop(self) -> None:
        """Stop the endpoint, which ships its last episodes."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._run_dir / "endpoint.log").open("ab") as log:
            return subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _last_line(self) -> str:
        lines = (self._run_dir / "endpoint.log").read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("tamiyo: error: ") if lines else "see endpoint.log"
