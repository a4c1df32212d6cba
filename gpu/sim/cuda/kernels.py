"""Launches of kernels, on the lane engine."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.sim.cuda import attributes
from gpu.sim.cuda.codes import (
    ILLEGAL_ADDRESS,
    INVALID_ADDRESS_SPACE,
    INVALID_VALUE,
    LAUNCH_FAILED,
    LAUNCH_OUT_OF_RESOURCES,
    MISALIGNED_ADDRESS,
    CudaError,
)
from gpu.sim.cuda.context import Allocation, Context
from gpu.sim.cuda.driver import Driver
from gpu.sim.cuda.memory import EVERY
from gpu.sim.cuda.modules import DYNAMIC_SHARED, MAX_THREADS, Function
from gpu.sim.cuda.work import Op
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.ptx.engine import shared_engine
from gpu.sim.isa.ptx.faults import WarpFault
from gpu.sim.isa.ptx.run import Grid
from gpu.sim.isa.ptx.warps import GridShape
from gpu.sim.races import Access, How, Spans

# Windows lie where neither the process nor the driver has memory.
_SHARED_WINDOW: Final = 1 << 52
_LOCAL_WINDOW: Final = _SHARED_WINDOW + (1 << 40)
_BUDGET: Final = 1 << 15  # branches of a turn
_NS_PER_INSTRUCTION: Final = 1
_MOST_PIECES: Final = 4096  # after so many misses a kernel's accesses are not written down any more
_CODES: Final = {
    "access": ILLEGAL_ADDRESS,
    "misaligned": MISALIGNED_ADDRESS,
    "space": INVALID_ADDRESS_SPACE,
    "trap": LAUNCH_FAILED,
    "stuck": LAUNCH_FAILED,
}
Three = tuple[int, int, int]


class Configuration(NamedTuple):
    """How a kernel is launched: blocks, threads of a block, bytes of dynamic shared memory."""

    grid: Three
    block: Three
    dynamic: int


@dataclass(frozen=True)
class Launch:
    """A kernel with all that it is given."""

    function: Function
    configuration: Configuration
    parameters: bytes

    @property
    def name(self) -> str:
        """For messages."""
        return f"kernel {self.function.name}"


def check(function: Function, configuration: Configuration) -> None:
    """Raises CudaError for a configuration that the device or the function does not allow."""
    device = function.module.context.device.attributes
    for kind, sizes, first in (("grid", configuration.grid, 5), ("block", configuration.block, 2)):
        for axis, size in enumerate(sizes):
            if not 1 <= size <= device[first + axis]:
                raise CudaError(
                    INVALID_VALUE,
                    f"{kind} {sizes}: axis {'xyz'[axis]} has 1 to {device[first + axis]}",
                )
    x, y, z = configuration.block
    if x * y * z > attributes.MOST_THREADS:
        raise CudaError(
            INVALID_VALUE, f"a block of {x * y * z} threads: {attributes.MOST_THREADS} at most"
        )
    if function.required_block and configuration.block != (*function.required_block, 1, 1)[:3]:
        raise CudaError(
            INVALID_VALUE,
            f"a block of {configuration.block}: {function.name} demands {function.required_block}",
        )
    if x * y * z > function.attributes[MAX_THREADS]:
        raise CudaError(
            LAUNCH_OUT_OF_RESOURCES,
            f"a block of {x * y * z} threads: {function.name} takes"
            f" {function.attributes[MAX_THREADS]}",
        )
    if configuration.dynamic > function.attributes[DYNAMIC_SHARED]:
        raise CudaError(
            INVALID_VALUE,
            f"{configuration.dynamic} bytes of dynamic shared memory: {function.name} takes"
            f" {function.attributes[DYNAMIC_SHARED]}, until its attribute is set",
        )


class Running:
    """A kernel in a stream: the `run` of its `Op`."""

    def __init__(self, driver: Driver, launch: Launch):
        self._driver = driver
        self._launch = launch
        self._seed = driver.rng.getrandbits(32)
        self._grid: Grid | None = None
        self._sight: _Sight | None = None

    def __call__(self, op: Op) -> bool:
        """A turn of it. Raises CudaError for what the kernel may not do."""
        try:
            grid = self._grid or self._begin(op)
            ended = grid.step(_BUDGET)
            if not ended:
                op.stuck = grid.why_stuck()
                return False
        except WarpFault as fault:
            self._end(op)
            raise CudaError(_CODES[fault.reason], fault.message) from fault
        self._end(op)
        counts = self._driver.simulation.counts
        counts.instructions += grid.instructions
        self._driver.simulation.clock.advance(grid.instructions * _NS_PER_INSTRUCTION)
        return True

    def _begin(self, op: Op) -> Grid:
        function, shape = self._launch.function, self._launch.configuration
        context = function.module.context
        alone = self._driver.work.is_alone(op)
        self._sight = sight = (
            _Sight(self._driver, context) if alone else _Watched(self._driver, context)
        )
        self._driver.simulation.counts.kernels += 1
        self._grid = Grid(
            shared_engine(),
            function.program,
            GridShape(
                grid=shape.grid,
                block=shape.block,
                parameters=self._launch.parameters,
                shared_bytes=function.program.shared_bytes + shape.dynamic,
                shared_window=_SHARED_WINDOW,
                local_window=_LOCAL_WINDOW,
            ),
            sight.map,
            sight.fill,
            self._seed,
        )
        return self._grid

    def _end(self, op: Op) -> None:
        if self._sight is not None:
            op.touches += self._sight.end()
        self._sight = None


class _Sight:
    """The memory that a kernel sees: that of its context.

    Memory of the host is for reading until the kernel writes, so that the write is noticed.
    """

    def __init__(self, driver: Driver, context: Context):
        self.map: MemoryMap = context.map
        self._memory = driver.memory
        self._context = context
        self._opened: list[Allocation] = []

    def fill(self, address: int, size: int, access: int) -> None:
        """A kernel misses memory."""
        found = self._allowed(address, size)
        if found is not None and found.is_host and access & ~layout.READ:
            found.written += 1
            self._open(found, EVERY)
            self._opened.append(found)

    def end(self) -> list[Access]:
        """The kernel has ended; what it touched, where that was written down."""
        for allocation in self._opened:
            if allocation in allocation.context.allocations:
                self._open(allocation, layout.READ)
        return []

    def _allowed(self, address: int, size: int) -> Allocation | None:
        """The allocation that an access lies in, if it is one that the context sees."""
        found = self._memory.find(address)
        if found is None or address + size > found.start + found.reach:
            return None
        return found if self._context.map.host_address(address, size) is not None else None

    def _open(self, allocation: Allocation, flags: int) -> None:
        for context in allocation.context.seen_by():
            context.map.remove(allocation.start)
            context.map.add(allocation.start, allocation.reach, allocation.host, flags)


class _Watched(_Sight):
    """The same, where other streams have work that nothing orders with the kernel.

    It begins with no memory at all and is given what it misses, byte for byte. After many misses it
    is given the rest, and what is touched then is not known any more.
    """

    def __init__(self, driver: Driver, context: Context):
        super().__init__(driver, context)
        self.map = MemoryMap()
        self._pieces: list[_Piece] = []
        self._touched: dict[How, Spans] = {"read": Spans(), "write": Spans(), "atomic": Spans()}
        self._misses = 0

    def fill(self, address: int, size: int, access: int) -> None:
        """A kernel misses memory."""
        found = self._allowed(address, size)
        if found is None:
            return
        if found.is_host and access & ~layout.READ:
            found.written += 1
        how: How = (
            "atomic" if access & layout.ATOMIC else "write" if access & layout.WRITE else "read"
        )
        self._touched[how].add(address, address + size)
        self._misses += 1
        if self._misses > _MOST_PIECES:
            self._give_all()
        else:
            self._give(_Piece(address, address + size, access, found.host - found.start))

    def end(self) -> list[Access]:
        """The kernel has ended; what it touched."""
        return [Access(*span, how) for how, spans in self._touched.items() for span in spans]

    def _give(self, piece: _Piece) -> None:
        """Lets the kernel access a piece; what of others lies in it becomes part of it."""
        first = bisect.bisect(self._pieces, piece.start, key=lambda p: p.end)
        last = bisect.bisect_left(self._pieces, piece.end, first, key=lambda p: p.start)
        inside = self._pieces[first:last]
        flags = piece.flags
        for other in inside:
            flags |= other.flags
        middle = [piece._replace(flags=flags)]
        if inside and inside[0].start < piece.start:
            middle.insert(0, inside[0]._replace(end=piece.start))
        if inside and inside[-1].end > piece.end:
            middle.append(inside[-1]._replace(start=piece.end))
        before = self._pieces[max(0, first - 1) : first]
        after = self._pieces[last : last + 1]
        self._pieces[max(0, first - 1) : last + 1] = _joined([*before, *middle, *after])
        self.map.replace([(p.start, p.end - p.start, p.start + p.to_host, p.flags)
                          for p in self._pieces])  # fmt: skip

    def _give_all(self) -> None:
        sees = self._context.map.host_address
        self.map.replace(
            [
                (a.start, a.reach, a.host, EVERY | layout.SCALAR)
                for a in self._memory.allocations
                if sees(a.start, 1) is not None
            ]
        )


class _Piece(NamedTuple):
    """Bytes that a kernel may access: from `start`, before `end`."""

    start: int
    end: int
    flags: int
    to_host: int


def _joined(pieces: list[_Piece]) -> list[_Piece]:
    """Pieces with those joined that lie side by side and are alike."""
    joined = pieces[:1]
    for piece in pieces[1:]:
        last = joined[-1]
        if (last.end, *last[2:]) == (piece.start, *piece[2:]):
            joined[-1] = last._replace(end=piece.end)
        else:
            joined.append(piece)
    return joined
