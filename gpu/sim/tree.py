"""A tree of read-mostly files, such as sysfs, without a disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

from gpu.sim.kernel import SysError

Content = bytes | Callable[[], bytes]


class FileTree:
    """Files by absolute path; folders are there because files are in them."""

    def __init__(self) -> None:
        self._files: dict[str, Content] = {}
        self._folders: dict[str, set[str]] = {"/": set()}

    def add(self, path: str, content: Content | str) -> None:
        """Adds a file; text ends as given. A function is called at each read."""
        self._files[path] = content.encode() if isinstance(content, str) else content
        while path != "/":
            folder, _, name = path.rpartition("/")
            path = folder or "/"
            self._folders.setdefault(path, set()).add(name)

    def remove(self, path: str) -> None:
        """Takes a file away, and folders with nothing left in them."""
        del self._files[path]
        while path != "/":
            folder, _, name = path.rpartition("/")
            path = folder or "/"
            self._folders[path].discard(name)
            if self._folders[path] or path == "/":
                return
            del self._folders[path]

    def read(self, path: str) -> bytes:
        """A file's bytes. Raises SysError: ENOENT, EISDIR."""
        content = self._files.get(path)
        if content is None:
            raise SysError(errno.EISDIR if path in self._folders else errno.ENOENT)
        return content if isinstance(content, bytes) else content()

    def names(self, path: str) -> list[str]:
        """What is in a folder, sorted. Raises SysError: ENOENT, ENOTDIR."""
        path = path.rstrip("/") or "/"
        if path not in self._folders:
            raise SysError(errno.ENOTDIR if path in self._files else errno.ENOENT)
        return sorted(self._folders[path])

    def has(self, path: str) -> bool:
        """Whether there is a file or folder of that path."""
        return path in self._files or (path.rstrip("/") or "/") in self._folders
