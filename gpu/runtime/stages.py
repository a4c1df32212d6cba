"""Where the time of compiling went: seconds of this process, by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SECONDS: Final[dict[str, float]] = {}
"""What each stage took so far. Stages follow each other; none is inside another."""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Adds the seconds of a `with` block to those of a stage."""
    began = time.perf_counter()
    try:
        yield
    finally:
        SECONDS[name] = SECONDS.get(name, 0.0) + time.perf_counter() - began
