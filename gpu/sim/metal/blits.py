"""Copies and fills (MTLBlitCommandEncoder; Apple, "Metal")."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from gpu.sim.metal.encoders import Encoder, Recorder
from gpu.sim.metal.indirect import IndirectCommandBuffer
from gpu.sim.metal.methods import Misuse, Range, method
from gpu.sim.metal.resources import Buffer
from gpu.sim.metal.work import Line
from gpu.sim.races import Access, How


def _access(buffer: Buffer, start: int, size: int, how: How) -> Access:
    return Access(buffer.gpu + start, buffer.gpu + start + size, how)


class BlitEncoder(Encoder):
    """A pass of copies and fills."""

    def __init__(self, buffer: Recorder):
        super().__init__(buffer)
        self._commands: list[tuple[str, Callable[[], None], list[Access]]] = []

    def run(self, line: Line) -> None:
        """Does all of them. Raises GpuFault."""
        self.begin(line)
        for what, run, accesses in self._commands:
            run()
            self.device.scheduler.touch(line, accesses, what)

    @method(
        "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
        *("v", "Buffer", "Q", "Buffer", "Q", "Q"),
    )
    def copy(self, source: Buffer, start: int, target: Buffer, at: int, size: int) -> None:
        """Bytes of a buffer to another, or within one."""
        self.check_open()
        what = "copyFromBuffer:"
        source.check(start, size, f"{what} source")
        target.check(at, size, f"{what} destination")
        if not self.device.chip.unified and (start | at | size) % 4:
            raise Misuse("blit-alignment", f"{what} {start}, {at} and {size} are multiples of 4")
        if source is target and start < at + size and at < start + size:
            raise Misuse("copy-overlap", f"{what} {size} bytes at {start} and at {at} overlap")
        self.use(source)
        self.use(target)

        def run() -> None:
            source.bring()
            target.bring()
            ctypes.memmove(target.gpu + at, source.gpu + start, size)

        accesses = [_access(source, start, size, "read"), _access(target, at, size, "write")]
        self._commands.append((what, run, accesses))

    @method("fillBuffer:range:value:", "v", "Buffer", "Range", "C")
    def fill(self, buffer: Buffer, part: Range, value: int) -> None:
        """A byte into all bytes of a range."""
        self.check_open()
        start, size = part.location, part.length
        buffer.check(start, size, "fillBuffer:")
        if not size:
            raise Misuse("empty-fill", "fillBuffer: of 0 bytes")
        if not self.device.chip.unified and (start | size) % 4:
            raise Misuse("blit-alignment", f"fillBuffer: {start} and {size} are multiples of 4")
        self.use(buffer)

        def run() -> None:
            buffer.bring()
            ctypes.memset(buffer.gpu + start, value, size)

        access = _access(buffer, start, size, "write")
        self._commands.append(("fillBuffer:", run, [access]))

    @method("synchronizeResource:", "v", "Buffer")
    def synchronize(self, buffer: Buffer) -> None:
        """The CPU sees what the GPU wrote to a managed buffer."""
        self.check_open()
        if buffer.managed is None:
            raise Misuse("not-managed", "synchronizeResource: of what is not managed")
        self.use(buffer)
        access = _access(buffer, 0, buffer.length, "read")
        self._commands.append(("synchronizeResource:", buffer.synchronize, [access]))

    @method("optimizeIndirectCommandBuffer:withRange:", "v", "IndirectCommandBuffer", "Range")
    def optimize(self, commands: IndirectCommandBuffer, part: Range) -> None:
        """Makes commands quicker; they are none of it here."""
        self.check_open()
        commands.check(part, "optimizeIndirectCommandBuffer:")
        self.use(commands)


CLASSES = (BlitEncoder,)
