"""Libraries that the system's loader may know by name."""

from __future__ import annotations

import ctypes


def is_loadable(name: str) -> bool:
    """Whether the loader finds a library of that soname; where it does, it is loaded."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
