"""`MetricsServer`: serves Prometheus metrics over HTTP, with bounded connections."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

MAX_CONNECTIONS = 32
REQUEST_S = 10.0  # for a connection, from its start to the end of the response


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a scraper comes every few seconds."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serve the metrics of `registry` at http://host:port/metrics until `close`.

    The port needs no token, so its connections are bounded: each is closed after `REQUEST_S`, and above
    `MAX_CONNECTIONS` the oldest one gives way. Raises `OSError` if the address cannot be used.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, address = info[0][0], info[0][4]
        self._open: dict[socket.socket, float] = {}  # and when it was accepted, oldest first
        self._lock = threading.Lock()
        super().__init__((str(address[0]), port), _QuietHandler)
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """See `socketserver.BaseServer`."""
        with self._lock:
            for oldest in list(self._open)[: max(0, len(self._open) + 1 - MAX_CONNECTIONS)]:
                self._end(oldest)
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """See `socketserver.BaseServer`."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """See `socketserver.BaseServer`. That a client went away is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def service_actions(self) -> None:
        """End overdue connections. Called by `serve_forever` at least twice a second."""
        with self._lock:
            for request in [r for r, start_s in self._open.items() if time.monotonic() - start_s > REQUEST_S]:
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        del self._open[request]
        with suppress(OSError):  # the client has closed it
            request.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
