"""Messages between the process that has a machine and those that use it.

A message is one packet of a Unix socket: JSON, and perhaps file descriptors. Bytes are hexadecimal
in it. Both ends are on one machine and of one version, and trust each other.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

from gpu.core.errors import AccessDenied, GpuError, HwTimeout, OutOfMemory, TransportError

Message = dict[str, Any]
ERRORS: Final[tuple[tuple[type[GpuError], tuple[str, ...]], ...]] = (
    (AccessDenied, ("path", "hint")),
    (HwTimeout, ("what", "last", "wanted", "seconds", "reason")),
    (OutOfMemory, ("message",)),
    (TransportError, ("message", "errno")),
)
"""What calls of a system raise, and what makes such an error again."""

_MOST_BYTES: Final = 1 << 20
_MOST_FDS: Final = 1


class Wire:
    """One end of a connection; `connect` and `listen` make them."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends a message, with copies of descriptors. Raises TransportError."""
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(fds))
        except OSError as error:
            raise TransportError(f"sending to a simulated machine: {error.strerror}") from error

    def receive(self) -> tuple[Message, list[int]] | None:
        """The next message and its descriptors, which are the caller's; None at the end."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _MOST_BYTES, _MOST_FDS)
        except OSError:
            return None
        return (json.loads(data), fds) if data else None

    def peer(self) -> int:
        """The process at the other end (SO_PEERCRED: pid, uid, gid)."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(found[:4], "little")

    def shut(self) -> None:
        """Ends it in both directions; who receives gets None. `close` is still to come."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end is gone

    def close(self) -> None:
        """Gives it back."""
        self._socket.close()


class Listener:
    """Where connections come in, at a path that must not exist."""

    def __init__(self, path: str):
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.bind(path)
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise TransportError(f"serving at {path}: {error.strerror}", error.errno) from error

    def accept(self) -> Wire | None:
        """The next connection; None after `close`."""
        try:
            return Wire(self._socket.accept()[0])
        except OSError:
            return None

    def close(self) -> None:
        """Takes no more connections, and removes the path."""
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._socket.close()
        os.unlink(self._path)


def connect(path: str) -> Wire:
    """A connection to who listens at a path. Raises TransportError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise TransportError(
            f"the simulated machine at {path}: {error.strerror}; is it served there?", error.errno
        ) from error
    return Wire(connection)
