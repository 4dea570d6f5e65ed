"""The server's certificate and key, taken up from their files whenever these change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from actors.errors import UserError


class _Files(NamedTuple):
    """PEM."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """`credentials` looks at the files at every handshake.

    New ones are in force as soon as key and certificate belong together. While they do not, as when one of them has
    been replaced and the other has not, those before them stay in force.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._log = structlog.get_logger("tamiyo.serving")
        self._lock = threading.Lock()  # handshakes ask from threads of gRPC's own
        try:
            self._stamp = self._look()
            self._files = self._read()
        except OSError as error:
            raise UserError(f"the TLS files cannot be read: {error}") from error
        except ValueError as error:
            raise UserError(f"the TLS files cannot be used: {error}") from error

    def credentials(self) -> grpc.ServerCredentials:
        # The stubs do not know that None means: as before.
        fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], self._fetch)
        return grpc.dynamic_ssl_server_credentials(_configuration(self._files), fetch, self._client_ca is not None)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """None where nothing has changed."""
        with self._lock:
            try:
                stamp = self._look()
                if stamp == self._stamp:
                    return None
                self._stamp = stamp
                files = self._read()
            except (OSError, ValueError) as error:
                self._log.error("certificate not renewed: the one before stays in force", reason=str(error))
                return None
            if files == self._files:
                return None
            self._files = files
            self._log.info("certificate renewed", path=str(self._certificate))
            return _configuration(files)

    def _look(self) -> tuple[int, ...]:
        paths = [p for p in (self._certificate, self._key, self._client_ca) if p is not None]
        found = [p.stat() for p in paths]
        return tuple(n for f in found for n in (f.st_mtime_ns, f.st_ctime_ns, f.st_size, f.st_ino))

    def _read(self) -> _Files:
        """Raises `OSError`, and `ValueError` for files that gRPC could not use."""
        authority = self._client_ca.read_bytes() if self._client_ca is not None else None
        files = _Files(self._certificate.read_bytes(), self._key.read_bytes(), authority)
        try:
            certificate = x509.load_pem_x509_certificates(files.certificate)[0]
            key = load_pem_private_key(files.key, None)
            if authority is not None:
                x509.load_pem_x509_certificates(authority)
        except (ValueError, TypeError) as error:
            raise ValueError(f"they are not PEM without a passphrase ({error})") from error
        if certificate.public_key() != key.public_key():
            raise ValueError(f"{self._key} is not the key of {self._certificate}")
        return files


def _configuration(files: _Files) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_ca)
