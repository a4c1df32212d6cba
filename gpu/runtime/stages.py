"""Where the time of compiling went: seconds of this process, by stage, and spans of a recording."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpu.runtime.timeline import note_span

SECONDS: Final[dict[str, float]] = {}
"""What each stage took so far. Stages follow each other; none is inside another."""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Adds the seconds of a `with` block to those of a stage."""
    began = time.perf_counter_ns()
    try:
        yield
    finally:
        seconds = (time.perf_counter_ns() - began) * 1e-9
        SECONDS[name] = SECONDS.get(name, 0.0) + seconds
        note_span(name, "compile", began)
