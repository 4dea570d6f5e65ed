"""`tamiyo secrets`: create every secret of a deployment as a file. Existing files are kept.

| file | read by |
|---|---|
| `users.acl` | Redis: one user per role, with hashed passwords |
| `learner.password`, `actor.password`, `reader.password` | learner, actors, policy server |
| `monitor.password` | health checks and `tamiyo status`; this user has read-only access |
| `ray.token` | all machines of the Ray cluster, and users of its dashboard |
| `serve.token` | the policy server and its clients |
| `serve.crt`, `serve.key` | the policy server; clients trust the certificate |
| `serve.state.key` | replicas of the policy server, to sign exported sessions |
| `grafana.password` | Grafana, for its user `admin` |

`share_secrets` copies to one folder per service only the files which that service reads.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from actors.errors import UserError
from actors.types.names import NAME_RULE, is_name
from deploy.commands.admin.certificate import general_names, is_good_for, self_signed

ROLES = ("learner", "actor", "reader", "monitor")
ANY_RUN = "*"  # a pattern of Redis
PRIVATE, PUBLIC = 0o400, 0o444
TOKEN_FILES = {
    "learner.password": PRIVATE,
    "actor.password": PRIVATE,
    "reader.password": PRIVATE,
    "monitor.password": PUBLIC,  # the health check of Redis runs as another user
    "ray.token": PRIVATE,
    "serve.token": PRIVATE,
    "serve.state.key": PRIVATE,
    "grafana.password": PUBLIC,  # Grafana runs as another user
}
"""Files with one random token each, and their permissions: readable by the owner, or by every user of the folder."""
MODES = {**TOKEN_FILES, "users.acl": PUBLIC, "serve.crt": PUBLIC, "serve.key": PRIVATE}
SERVICES = {
    "redis": ("users.acl", "monitor.password"),
    "learner": ("learner.password",),
    "fleet": ("actor.password", "ray.token"),
    "actors": ("ray.token",),
    "serve": ("reader.password", "serve.token", "serve.crt", "serve.key", "serve.state.key"),
    "grafana": ("grafana.password",),
    "status": ("monitor.password",),
}
"""The secrets that each service of docker-compose.yml reads."""


def write_secrets(folder: Path, hosts: Sequence[str], run: str = ANY_RUN) -> list[str]:
    """Create the missing secrets in `folder` and return the names of the files that were written.

    The users of Redis may access only the keys of `run`. `hosts` are the names and addresses of the policy server. Its
    key and certificate are replaced together if the certificate expires soon, lacks one of them or belongs to another
    key. Raises `UserError` if the run's name or a host's is invalid.
    """
    if run != ANY_RUN and not is_name(run):
        raise UserError(f"{run!r} is not a valid run name: use {NAME_RULE}")
    general_names(hosts)  # checked before anything is written
    made: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKEN_FILES:
        if not (folder / name).exists():
            _write({folder / name: secrets.token_hex(32).encode() + b"\n"})
            made.append(name)
    users = _users(folder, run).encode()
    if not (folder / "users.acl").exists() or (folder / "users.acl").read_bytes() != users:
        _write({folder / "users.acl": users})
        made.append("users.acl")
    certificate, key = folder / "serve.crt", folder / "serve.key"
    if not (certificate.exists() and key.exists() and is_good_for(certificate, key, hosts)):
        pair = self_signed(hosts)
        _write({key: pair.key, certificate: pair.certificate})
        made += ["serve.key", "serve.crt"]
    return made


def share_secrets(folder: Path, services: Path) -> list[str]:
    """Copy the secrets of each service in `SERVICES` from `folder` to `services`/NAME, and delete other secrets there.

    Returns the files that were changed.
    """
    changed: list[str] = []
    for service, names in SERVICES.items():
        target = services / service
        target.mkdir(parents=True, exist_ok=True)
        for name in MODES:
            copy = target / name
            before = copy.read_bytes() if copy.exists() else None
            data = (folder / name).read_bytes() if name in names else None
            if data is None:
                copy.unlink(missing_ok=True)
            elif data != before:
                _write({copy: data})
            if data != before:
                changed.append(f"{service}/{name}")
    return changed


def _users(folder: Path, run: str) -> str:
    """Return `users.acl` with the run and the password hashes filled in."""
    text = files("deploy").joinpath("redis", "users.acl").read_text("utf-8")
    text = text.replace("{*}", f"{{{run}}}")
    for role in ROLES:
        password = (folder / f"{role}.password").read_bytes().strip()
        text = text.replace(f"${{{role.upper()}_SHA256}}", hashlib.sha256(password).hexdigest())
    return text


def _write(contents: Mapping[Path, bytes]) -> None:
    """Write files with the permissions of their names, all or none of them. None is ever more readable than that."""
    partials = {path.with_name(path.name + ".partial"): path for path in contents}
    try:
        for partial, path in partials.items():
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())
            partial.chmod(MODES[path.name])
        for partial, path in partials.items():
            partial.replace(path)
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
