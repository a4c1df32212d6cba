"""What the host writes to memory is there when it reads it."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu.hcq.ports import Memory
from tools.hw_acceptance.steplog import StepLog

_CHECKED: Final = 64 << 10  # bytes of each end of an allocation


def check_pattern(log: StepLog, found: Memory, name: str) -> None:
    """Writes and reads both ends of memory that the host has mapped, and a word of it."""
    assert found.window is not None, "memory of this kind is mapped for the host"
    # Its ends: through an uncached BAR, as in gVisor, each byte that is read takes a microsecond.
    size = min(found.size, _CHECKED)
    pattern = np.random.default_rng(found.size).integers(0, 256, 2 * size, np.uint8).tobytes()
    for at, part in ((found.size - size, pattern[size:]), (0, pattern[:size])):
        found.window.store(at, part)
        log.check(f"{name} read back at {at:#x}", found.window.load(at, size) == part)
    found.window.write(0, 4, 0x1234_5678)
    log.check(f"{name}: one word", found.window.read(0, 4) == 0x1234_5678)
