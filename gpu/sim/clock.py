"""Virtual time: it passes when engines work and when a caller waits, and never by itself."""

from __future__ import annotations

from typing import Final

GPU_CLOCK_HZ: Final = 100_000_000
"""The constant clock of AMD's time stamps (dossier 5.3: RELEASE_MEM data_sel 3 counts 100 MHz)."""
_START_NS: Final = 1_000_000_000


class VirtualClock:
    """Nanoseconds since a made-up start; the same seed sees the same times."""

    def __init__(self) -> None:
        self.now_ns = _START_NS

    def advance(self, nanoseconds: int) -> None:
        """Lets time pass."""
        assert nanoseconds >= 0
        self.now_ns += nanoseconds

    @property
    def gpu_ticks(self) -> int:
        """The same time as the GPU counts it."""
        return self.now_ns * GPU_CLOCK_HZ // 1_000_000_000
