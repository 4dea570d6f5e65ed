"""`tamiyo secrets`: every secret of a deployment as a file, made once; what is there already is kept.

| file | who reads it |
|---|---|
| `users.acl` | the store: a user per role, with the sums of their passwords |
| `learner.password`, `actor.password`, `reader.password` | learner, actors, policy server |
| `monitor.password` | health checks and `tamiyo status`; it may look and change nothing |
| `ray.token` | all machines of the Ray cluster, and people at its dashboard |
| `serve.token` | the policy server and its clients |
| `serve.crt`, `serve.key` | the policy server; clients trust the certificate |
| `serve.state.key` | replicas of the policy server: signs exported sessions |
| `grafana.password` | Grafana, for its user `admin` |

`share_secrets` copies to a folder of each service what that service reads, so that it can be given nothing else.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from actors.errors import UserError
from deploy.commands.certificate import is_good_for, self_signed

ROLES = ("learner", "actor", "reader", "monitor")
PRIVATE, PUBLIC = 0o400, 0o444
WORDS = {
    "learner.password": PRIVATE,
    "actor.password": PRIVATE,
    "reader.password": PRIVATE,
    "monitor.password": PUBLIC,  # the store's own health check runs as another user
    "ray.token": PRIVATE,
    "serve.token": PRIVATE,
    "serve.state.key": PRIVATE,
    "grafana.password": PUBLIC,  # Grafana runs as another user
}
"""Files of one random word each, and who may read them where they lie: their owner, or whoever is let at the folder."""
MODES = {**WORDS, "users.acl": PUBLIC, "serve.crt": PUBLIC, "serve.key": PRIVATE}
SERVICES = {
    "redis": ("users.acl", "monitor.password"),
    "learner": ("learner.password",),
    "fleet": ("actor.password", "ray.token"),
    "actors": ("ray.token",),
    "serve": ("reader.password", "serve.token", "serve.crt", "serve.key", "serve.state.key"),
    "grafana": ("grafana.password",),
    "status": ("monitor.password",),
}
"""What the services of docker-compose.yml read."""


def write_secrets(folder: Path, hosts: Sequence[str]) -> list[str]:
    """Names of the files that were made. `hosts` are what the policy server's certificate is for; it is made anew when
    it runs out or lacks one of them. Raises `UserError` where the folder cannot be written."""
    made: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, mode in WORDS.items():
            if not (folder / name).exists():
                _write(folder / name, secrets.token_hex(32).encode() + b"\n", mode)
                made.append(name)
        users = _users(folder).encode()
        if not (folder / "users.acl").exists() or (folder / "users.acl").read_bytes() != users:
            _write(folder / "users.acl", users, PUBLIC)
            made.append("users.acl")
        certificate, key = folder / "serve.crt", folder / "serve.key"
        if not (certificate.exists() and key.exists() and is_good_for(certificate.read_bytes(), hosts)):
            pair = self_signed(hosts)
            _write(key, pair.key, PRIVATE)
            _write(certificate, pair.certificate, PUBLIC)
            made += ["serve.key", "serve.crt"]
    except OSError as error:
        raise UserError(f"cannot write secrets to {folder} ({error.strerror}): give a folder of this user") from error
    return made


def share_secrets(folder: Path, services: Path) -> list[str]:
    """Copy the secrets in `folder` to `services`/NAME, a folder for each of `SERVICES`, and remove secrets that are not
    that service's own. Returns the files that were changed. Raises `UserError` where one cannot be written."""
    changed: list[str] = []
    try:
        for service, names in SERVICES.items():
            place = services / service
            place.mkdir(parents=True, exist_ok=True)
            for name, mode in MODES.items():
                copy = place / name
                if name not in names:
                    if copy.exists():
                        copy.unlink()
                        changed.append(f"{service}/{name}")
                    continue
                data = (folder / name).read_bytes()
                if not copy.exists() or copy.read_bytes() != data:
                    _write(copy, data, mode)
                    changed.append(f"{service}/{name}")
    except OSError as error:
        raise UserError(f"cannot write secrets to {error.filename} ({error.strerror})") from error
    return changed


def _users(folder: Path) -> str:
    """The store's users, with sums in the places that the shipped file has for them."""
    text = files("deploy").joinpath("redis", "users.acl").read_text("utf-8")
    for role in ROLES:
        password = (folder / f"{role}.password").read_bytes().strip()
        text = text.replace(f"${{{role.upper()}_SHA256}}", hashlib.sha256(password).hexdigest())
    return text


def _write(path: Path, data: bytes, mode: int) -> None:
    """All of it or nothing, and never readable by more than `mode` says."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.chmod(mode)
    partial.replace(path)
