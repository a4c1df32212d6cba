"""Shared libraries: which release of one this is, and whether the loader knows one by name."""

from __future__ import annotations

import ctypes
import os


def is_loadable(name: str) -> bool:
    """Whether the loader finds a library of that soname; where it does, it is loaded."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def release(name: str, path: str, version: str) -> str:
    """What differs between two releases of a library, for cache keys.

    `path` is that of its file, or a bare name; `version` is empty where it is not known.
    """
    size = os.stat(path).st_size if os.path.isfile(path) else 0
    return f"{name} {version or os.path.basename(path)} {size}"
