"""`CertificateReloader`: TLS credentials that are reloaded when their files change."""

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


class _PemFiles(NamedTuple):
    """Contents of the files, PEM."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


class CertificateReloader:
    """Check the files at every TLS handshake, and use new ones as soon as key and certificate match.

    While they do not match, for example because only one of them has been replaced so far, the previous ones are used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._log = structlog.get_logger("tamiyo.serving")
        self._lock = threading.Lock()  # handshakes run in threads of gRPC
        try:
            self._stamp = self._file_stamp()
            self._files = self._read()
        except OSError as error:
            raise UserError(f"cannot read the TLS files: {error}") from error
        except ValueError as error:
            raise UserError(f"cannot use the TLS files: {error}") from error

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that follow the files."""
        # gRPC takes None as "unchanged", which the type stubs do not know.
        fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], self._fetch)
        return grpc.dynamic_ssl_server_credentials(_configuration(self._files), fetch, self._client_ca is not None)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration, or None if nothing has changed."""
        with self._lock:
            try:
                stamp = self._file_stamp()
                if stamp == self._stamp:
                    return None
                self._stamp = stamp
                files = self._read()
            except (OSError, ValueError) as error:
                self._log.error("certificate not reloaded: the previous one stays in use", reason=str(error))
                return None
            if files == self._files:
                return None
            self._files = files
            self._log.info("certificate reloaded", path=str(self._certificate))
            return _configuration(files)

    def _file_stamp(self) -> tuple[int, ...]:
        paths = [p for p in (self._certificate, self._key, self._client_ca) if p is not None]
        stats = [p.stat() for p in paths]
        return tuple(n for s in stats for n in (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino))

    def _read(self) -> _PemFiles:
        """Read and validate the files. Raises `OSError`, or `ValueError` for files that gRPC could not use."""
        authority = self._client_ca.read_bytes() if self._client_ca is not None else None
        files = _PemFiles(self._certificate.read_bytes(), self._key.read_bytes(), authority)
        try:
            certificate = x509.load_pem_x509_certificates(files.certificate)[0]
            key = load_pem_private_key(files.key, None)
            if authority is not None:
                x509.load_pem_x509_certificates(authority)
        except (ValueError, TypeError) as error:
            raise ValueError(f"they must be PEM without a passphrase ({error})") from error
        if certificate.public_key() != key.public_key():
            raise ValueError(f"{self._key} is not the key of {self._certificate}")
        return files


def _configuration(files: _PemFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_ca)
