"""`Connections`: closes connections before they use up the file descriptors of the process."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import closing, suppress

RESERVED_FILES = 128  # for everything else: weights, the store, the token file, the metrics port
_OPEN_FILES = "/dev/fd"


class Connections:
    """The TCP connections of a server: `sweep` closes those beyond `limit`.

    Those on which no call was admitted are closed first, oldest first, and then those whose last request is the longest
    ago. Clients connect again by themselves. Between two sweeps gRPC refuses connections beyond `refused_from`; it
    cannot choose, so that health checks would be refused too while idle connections stay.
    """

    def __init__(self, wanted: int) -> None:
        """Allow `wanted` connections, or as many as the limit of open files permits, which is raised if possible."""
        files = 2 * wanted + RESERVED_FILES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < files:
            soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            files = soft
        self.limit = max(1, (files - RESERVED_FILES) // 2)
        self.refused_from = 2 * self.limit
        self._used: dict[str, None] = {}  # peers with an admitted call, in the order of their last requests
        self._seen: dict[str, None] = {}  # peers, in the order of the sweeps that found them

    def used(self, peer: str) -> None:
        """Note a request of an admitted call from `peer`, as gRPC names it."""
        self._used.pop(peer, None)
        self._used[peer] = None
        if len(self._used) > self.refused_from:
            del self._used[next(iter(self._used))]

    def sweep(self, port: int) -> int:
        """Close the connections to `port` beyond the limit, and return their number."""
        files = os.listdir(_OPEN_FILES)
        if len(files) <= self.limit // 2:
            self._seen.clear()
            return 0
        found: dict[str, int] = {}
        for file in map(int, files):
            with suppress(OSError), closing(_socket(file)) as connection:
                if connection.getsockname()[1:2] == (port,):  # the name of a Unix socket is a string
                    found[_peer(connection)] = file
        self._seen = dict.fromkeys([*(peer for peer in self._seen if peer in found), *found])
        candidates = [*(p for p in self._seen if p not in self._used), *(p for p in self._used if p in found)]
        excess = candidates[: max(0, len(found) - self.limit)]
        for peer in excess:
            with suppress(OSError), closing(_socket(found[peer])) as connection:
                if _peer(connection) == peer:  # the descriptor may belong to something else by now
                    connection.shutdown(socket.SHUT_RDWR)  # gRPC then closes it
        return len(excess)


def _socket(file: int) -> socket.socket:
    """Return a duplicate of a file descriptor. Raises `OSError` if it is not a socket."""
    duplicate = os.dup(file)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _peer(connection: socket.socket) -> str:
    """Return the name that gRPC gives to the other end."""
    host, port = connection.getpeername()[:2]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    mapped = host.removeprefix("::ffff:")
    return f"ipv4:{mapped}:{port}" if "." in mapped else f"ipv6:%5B{host}%5D:{port}"
