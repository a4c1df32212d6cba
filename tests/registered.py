"""Device types that there are for a moment only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpu.core.devspec import DEVICES
from gpu.runtime.device import BACKENDS, Compiled, Device, Opener, register


@contextmanager
def registered(name: str, backend: str | Opener) -> Iterator[Compiled]:
    """The open device of a type that there is within the block alone."""
    register(name, backend)
    try:
        yield Device[name]
    finally:
        for table in (DEVICES, BACKENDS, Device._open):
            table.pop(name, None)
