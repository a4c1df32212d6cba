"""Reading the files by which a system tells of its devices, without opening any device.

Apart from `gpu.transport.os`, so that looking which devices there are costs no more than that.
"""

from __future__ import annotations

import errno
import os
from typing import NoReturn, Protocol

from gpu.core.errors import AccessDenied, TransportError
from gpu.transport.access import access_hint


class Files(Protocol):
    """Files of one machine, real or not, that are read."""

    def read_file(self, path: str) -> bytes:
        """All that a file holds. Raises AccessDenied, TransportError."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder, sorted. Raises AccessDenied, TransportError."""
        ...

    def exists(self, path: str) -> bool:
        """Whether something has this path, as far as this user may see."""
        ...


class Looking(Files, Protocol):
    """The same for who only looks which devices there are."""

    def why_denied(self, path: str) -> str:
        """Why this user may not read and write a node that is there, and what to do; or empty.

        Nothing is opened. That a node may be opened does not mean that its driver answers.
        """
        ...


class RealFiles:
    """The files of this machine."""

    def read_file(self, path: str) -> bytes:
        """All that a file holds; see `Files.read_file`."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            fail("reading", path, error, os.O_RDONLY)

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder; see `Files.list_dir`."""
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            fail("listing", path, error, os.O_RDONLY)

    def exists(self, path: str) -> bool:
        """Whether something has this path; see `Files.exists`."""
        return os.path.exists(path)

    def why_denied(self, path: str) -> str:
        """Why this user may not read and write a node; see `Looking.why_denied`."""
        effective = os.access in os.supports_effective_ids
        if os.access(path, os.R_OK | os.W_OK, effective_ids=effective):
            return ""
        return AccessDenied(path, access_hint(path, os.O_RDWR)).message


def fail(action: str, path: str, error: OSError, flags: int = 0) -> NoReturn:
    """Raises the typed form of an OSError."""
    if error.errno in (errno.EACCES, errno.EPERM):
        raise AccessDenied(path, access_hint(path, flags)) from error
    reason = error.strerror or str(error)
    if error.errno == errno.ENOENT:
        reason += "; is the device there and its kernel driver loaded?"
    raise TransportError(f"{action} {path}: {reason}", error.errno) from error


def boot_id() -> str:
    """Which start of which machine this is; empty where the system does not say.

    Linux has another one after each start (random(4)), and the same in all containers.
    """
    path, files = "/proc/sys/kernel/random/boot_id", RealFiles()
    return files.read_file(path).decode().strip() if files.exists(path) else ""
