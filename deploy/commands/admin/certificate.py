"""A self-signed TLS certificate for the policy server."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from actors.errors import UserError

VALID_DAYS = 365
RENEW_DAYS = 30  # a certificate with fewer days left is replaced
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")


class CertificateAndKey(NamedTuple):
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def self_signed(hosts: Sequence[str]) -> CertificateAndKey:
    """Create a certificate for these host names and addresses, to be trusted directly by clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tamiyo policy server")])
    now = datetime.datetime.now(datetime.UTC)
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    others = dict.fromkeys((*names, "crl_sign", "encipher_only", "decipher_only"), False)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, **others)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # tolerate clock skew
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(general_names(hosts)), critical=False)
        .sign(key, hashes.SHA256())
    )
    return CertificateAndKey(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def is_good_for(certificate: Path, key: Path, hosts: Sequence[str]) -> bool:
    """Whether a certificate covers all `hosts`, is valid for more than `RENEW_DAYS`, and belongs to the private key. A
    crash may have replaced only one of the two."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        covered = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        is_pair = serialization.load_pem_private_key(key.read_bytes(), None).public_key() == loaded.public_key()
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return False
    left = loaded.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return is_pair and left > datetime.timedelta(days=RENEW_DAYS) and set(general_names(hosts)) <= set(covered)


def general_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Return names as certificates hold them. Raises `UserError` for one that no client could connect to."""
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError as error:
            if not _HOST.fullmatch(host) or len(host) > 253:
                raise UserError(
                    f"{host!r} is not the name or address of a host: give it without scheme, port and path, such as "
                    "--host policy.example 10.0.0.7, and letters outside ASCII as xn--..."
                ) from error
            found.append(x509.DNSName(host))
    return found
