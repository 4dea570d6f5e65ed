"""`exchange`: send commands to Redis and read their replies, with less work per command than redis-py's pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hiredis import pack_command

WRITE_BYTES = 160 * 1024  # most bytes per write; above a socket's buffer, usually 208 KiB, a write waits for the server
Argument = bytes | str | int


def exchange(pool: Any, commands: Sequence[Sequence[Argument]], failure: type[Exception]) -> list[Any]:
    """Send commands together over a connection of redis-py's `pool`, and return their replies without converting them.

    A connection that breaks is opened again and all commands are sent again, as often as the connection's `Retry` says.

    Args:
        pool: a `redis.ConnectionPool`.
        commands: names and arguments.
        failure: the class of errors that are replies; they are returned in the place of the reply.
    """
    writes = join_commands(commands)
    connection = pool.get_connection()

    def run() -> list[Any]:
        replies: list[Any] = []
        try:
            connection.send_packed_command(writes)
            while len(replies) < len(commands):
                try:
                    replies.append(connection.read_response())
                except failure as error:
                    replies.append(error)
        except BaseException:  # the next user of the connection must not receive the replies that were not read
            connection.disconnect()
            raise
        return replies

    try:
        replies: list[Any] = connection.retry.call_with_retry(run, lambda error: connection.disconnect())
        return replies
    finally:
        pool.release(connection)


def join_commands(commands: Sequence[Sequence[Argument]]) -> list[bytes]:
    """Serialize commands and join them into writes of up to `WRITE_BYTES`, because every write wakes the server."""
    writes: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for command in commands:
        packed: bytes = pack_command(tuple(command))  # type: ignore[arg-type] # its stub has tuples of one item only
        if parts and size + len(packed) > WRITE_BYTES:
            writes.append(b"".join(parts))
            parts, size = [], 0
        parts.append(packed)
        size += len(packed)
    writes.append(b"".join(parts))
    return writes
