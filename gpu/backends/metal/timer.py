"""Kernels timed by Metal, which notes in each command buffer when the GPU began and ended it.

The times are seconds of the clock that counts since the machine started (GPUStartTime of
MTLCommandBuffer.h), which is the host's monotonic clock of Python on macOS.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gpu.backends.metal.context import Commands, MetalContext
from gpu.backends.metal.program import MetalProgram
from gpu.runtime.program import Program
from gpu.runtime.timer import Timed, Timer

_NS: Final = 1e9


class _Running(NamedTuple):
    """A launch that is perhaps not done."""

    key: object
    name: str
    commands: Commands


class MetalTimer(Timer):
    """Each launch is a command buffer of its own."""

    def __init__(self, context: MetalContext):
        self._context = context
        self._running: list[_Running] = []
        self._lock = threading.Lock()

    def launch(
        self, program: Program, memories: Sequence[Any], vals: Sequence[int], key: object
    ) -> None:
        """As `Timer.launch`."""
        assert isinstance(program, MetalProgram)
        commands = program.launch(memories, vals)
        with self._lock:
            self._running.append(_Running(key, program.name, commands))

    @property
    def pending(self) -> int:
        """As `Timer.pending`."""
        return len(self._running)

    def collect(self, wait: bool) -> list[Timed]:
        """As `Timer.collect`."""
        context = self._context
        with self._lock:
            running, self._running = self._running, []
        if wait:
            context.synchronize()
        with context.in_pool():
            done = [each for each in running if context.is_done(each.commands)]
            found = [self._timed(each) for each in done]
        with self._lock:
            self._running[:0] = [each for each in running if each not in done]
        return found

    def _timed(self, each: _Running) -> Timed:
        start, end = self._context.times(each.commands)
        began, ended = round(start * _NS), round(end * _NS)
        return Timed(each.key, each.name, "queue", began, ended, end - start)
