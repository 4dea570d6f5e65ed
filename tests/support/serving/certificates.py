"""A certificate authority for tests."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates for servers on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority")
        self.certificate = self._write("ca.pem", self._sign(self._name, self._key, authority=True))

    def issue(self, name: str, *others: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._write(f"{name}.pem", self._sign(_name(name), key, others)), self._write(f"{name}.key", secret)

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, others: Iterable[str] = (), authority: bool = False
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName(host) for host in ("localhost", *others)]
        hosts = [*names, x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        )
        return built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> Path:
        (self.folder / name).write_bytes(data)
        return self.folder / name


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
