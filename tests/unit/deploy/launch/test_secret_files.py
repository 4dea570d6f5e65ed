"""`tamiyo secrets`: files are created once, have restrictive permissions and are valid."""

from __future__ import annotations

import hashlib
import re
import ssl
import stat
import time
from pathlib import Path

import pytest

from actors.errors import UserError
from deploy import cli
from deploy.commands.admin import certificate
from deploy.commands.admin.secrets import PRIVATE, PUBLIC, ROLES, SERVICES, TOKEN_FILES, share_secrets, write_secrets

HOSTS = ["localhost", "127.0.0.1", "serve", "::1", "*.policy.example", "xn--mnchen-3ya.example", "a_b"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_secret_is_created_once_and_all_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "secrets"
    assert cli.main(["secrets", str(folder), "--host", *HOSTS]) == 0
    first = contents(folder)
    assert set(first) == {*TOKEN_FILES, "users.acl", "serve.crt", "serve.key"}
    assert len({first[name] for name in TOKEN_FILES if len(first[name].strip()) == 64}) == len(TOKEN_FILES)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    public = {"users.acl", "serve.crt", "monitor.password", "grafana.password"}
    assert modes == {name: PUBLIC if name in public else PRIVATE for name in first}
    assert cli.main(["secrets", str(folder), "--host", *HOSTS]) == 0
    assert contents(folder) == first
    said = capsys.readouterr()
    assert said.out.splitlines()[1] == f"{folder}: all files exist"
    assert not any(secret.decode().strip() in said.out + said.err for secret in first.values())


@pytest.mark.parametrize("name", ["serve.key.partial", "serve.crt.partial"])
def test_key_and_certificate_are_replaced_together_or_not_at_all(tmp_path: Path, name: str) -> None:
    write_secrets(tmp_path, HOSTS)
    before = contents(tmp_path)
    (tmp_path / name).mkdir()  # no file can be written there
    with pytest.raises(IsADirectoryError):
        write_secrets(tmp_path, [*HOSTS, "another"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_what_is_missing_old_or_does_not_fit_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_secrets(tmp_path, HOSTS)
    before = contents(tmp_path)
    (tmp_path / "actor.password").unlink()
    assert write_secrets(tmp_path, HOSTS) == ["actor.password", "users.acl"]
    after = contents(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"actor.password", "users.acl"}
    key = tmp_path / "serve.key"
    key.chmod(0o600)
    key.write_bytes(certificate.self_signed(HOSTS).key)  # as after a crash between the two
    assert write_secrets(tmp_path, HOSTS) == ["serve.key", "serve.crt"]
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "serve.crt", key)
    assert write_secrets(tmp_path, [*HOSTS, "grow.example.org"]) == ["serve.key", "serve.crt"]
    assert write_secrets(tmp_path, HOSTS) == []
    monkeypatch.setattr(certificate, "RENEW_DAYS", certificate.VALID_DAYS + 1)
    assert write_secrets(tmp_path, HOSTS) == ["serve.key", "serve.crt"]


def test_each_service_folder_holds_only_the_secrets_of_that_service(tmp_path: Path) -> None:
    folder, services = tmp_path / "all", tmp_path / "services"
    assert cli.main(["secrets", str(folder), "--services", str(services)]) == 0
    assert {place.name for place in services.iterdir()} == set(SERVICES)
    for name, files in SERVICES.items():
        assert set(contents(services / name)) == set(files)
        for own, given in ((folder / file, services / name / file) for file in files):
            assert (own.read_bytes(), own.stat().st_mode) == (given.read_bytes(), given.stat().st_mode)
    assert set.union(*(set(files) for files in SERVICES.values())) == set(contents(folder))
    (services / "actors" / "learner.password").write_text("of an earlier layout")
    (folder / "serve.token").unlink()
    write_secrets(folder, ["localhost", "127.0.0.1"])
    assert share_secrets(folder, services) == ["actors/learner.password", "serve/serve.token"]
    assert share_secrets(folder, services) == []
    assert (services / "serve" / "serve.token").read_bytes() == (folder / "serve.token").read_bytes()


def test_users_have_the_hashes_of_their_passwords_and_access_to_one_run(tmp_path: Path) -> None:
    write_secrets(tmp_path, HOSTS)
    text = (tmp_path / "users.acl").read_text()
    lines = {line.split()[1]: line.split() for line in text.splitlines()}
    assert set(lines) == {"default", *ROLES}
    assert "off" in lines["default"]
    for role in ROLES:
        word = (tmp_path / f"{role}.password").read_text().strip()
        assert f"#{hashlib.sha256(word.encode()).hexdigest()}" in lines[role]
    assert "{*}" in text
    assert write_secrets(tmp_path, HOSTS, "mine") == ["users.acl"]
    patterns = re.findall(r"~([^ )]+)", (tmp_path / "users.acl").read_text())
    assert len(patterns) > 20
    assert all(pattern.startswith("{mine}:") for pattern in patterns)
    with pytest.raises(UserError, match="not a valid run name"):
        write_secrets(tmp_path, HOSTS, "mi*ne")


def test_openssl_accepts_the_certificate_and_it_covers_the_hosts(tmp_path: Path) -> None:
    write_secrets(tmp_path, HOSTS)
    context = ssl.create_default_context(cafile=str(tmp_path / "serve.crt"))
    (known,) = context.get_ca_certs()
    addresses = [("IP Address", "127.0.0.1"), ("IP Address", "0:0:0:0:0:0:0:1")]
    assert sorted(known["subjectAltName"]) == sorted([*addresses, *(("DNS", h) for h in HOSTS if h[0] not in "1:")])
    days = (ssl.cert_time_to_seconds(str(known["notAfter"])) - time.time()) / 86400
    assert certificate.RENEW_DAYS < days <= certificate.VALID_DAYS
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tmp_path / "serve.crt", tmp_path / "serve.key")


@pytest.mark.parametrize(
    "host", ["", "host:50051", "https://policy.example", "policy.example/", "münchen.example", "a b"]
)
def test_names_that_no_client_could_use_are_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError, match="is not the name or address of a host"):
        write_secrets(tmp_path / "secrets", ["localhost", host])
    assert not (tmp_path / "secrets").exists()
