"""A grid under way: workgroups of waves that take turns, whatever their instruction set.

The turns are native (gpu/sim/isa/scheduler.py). Here is what a grid begins with, and what is
seldom: memory that a wave has missed, circles, barriers of a kind of their own, faults.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.core.bits import align_up
from gpu.core.errors import DeviceHang
from gpu.sim.isa import layout, scheduler
from gpu.sim.isa.circles import Circle, Code, Found, is_plain_loop, tell
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.memorymap import MemoryMap, Table
from gpu.sim.isa.waves import Bytes, Wave, aligned_bytes

OnMiss = Callable[[int, int, int], None]
_function: Final = cache(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p))
_PLACE: Final = {name: number for number, name in enumerate(scheduler.FIELDS)}
_BUDGET, _RANDOM, _INSTRUCTIONS = _PLACE["budget"], _PLACE["random"], _PLACE["instructions"]
_WAVES, _LDS = _PLACE["waves"], _PLACE["lds"]
_RANGES, _COUNT, _OFFERS = _PLACE["ranges"], _PLACE["range_count"], _PLACE["offers"]
_MOST: Final = (1 << 63) - 1
_WHILE: Final = 1 << 16  # branches between two looks at signals
_MOST_ROOMS: Final = 4


class Room(NamedTuple):
    """Memory for what is resident, and its address."""

    memory: Bytes
    address: int


_NO_ROOM: Final = Room(np.empty(0, np.uint8), 0)
_ROOMS: Final[list[Room]] = []
"""What grids that have ended had, for those to come: fresh pages cost more than a small kernel."""


class GroupId(NamedTuple):
    """A row that differs among workgroups; see `scheduler.ID_FIELDS`."""

    offset: int
    step: int
    wrap: int
    divisor: int = 1
    modulus: int = _MOST
    scale: int = 1


@dataclass(frozen=True)
class Start:
    """What the waves of a grid begin with.

    Attributes:
        wave: where the rows of waves lie.
        groups: workgroups of the grid.
        templates: memory of each wave of a workgroup, as it begins; RESUME is its first record.
        ids: rows that differ among workgroups.
        arguments: what grids that begin alike differ in, written there before each.
        lds_bytes: memory of a workgroup.
        scratch_bytes: memory of each wave's own.
        scratch: host addresses of that memory for each wave that may be resident; empty for memory
            of the grid's own.
        most_groups: workgroups that may be resident at a time.
        place: offset of a row that gets the number of a wave among those that may be resident, and
            how much one counts there; (0, 0) for none.
        users: offset of the rows that hold the dwords of `arguments`; 0 where code finds them
            otherwise.
    """

    wave: WaveLayout
    groups: int
    templates: npt.NDArray[np.uint8]
    ids: Sequence[GroupId]
    arguments: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    lds_bytes: int = 0
    scratch_bytes: int = 0
    scratch: Sequence[int] = ()
    most_groups: int = scheduler.RESIDENT
    users: int = 0
    place: tuple[int, int] = (0, 0)


def resident_groups(waves: int, groups: int) -> int:
    """How many workgroups of so many waves are resident at a time."""
    return min(max(1, scheduler.RESIDENT // waves), groups)


class LaneGrid(ABC):
    """A grid under way: some of its workgroups are resident, others wait for room.

    Attributes:
        stands: whether no wave got on when it was last run.
    """

    def __init__(
        self,
        run: int,
        code: Code,
        start: Start,
        memory: MemoryMap,
        on_miss: OnMiss | None,
        seed: int,
        arguments: bytes = b"",
        asks: bool = False,
    ):
        """Begins a grid.

        Args:
            run: the address of `run_grid`.
            code: the program of its waves.
            start: what they begin with.
            memory: what addresses mean. Changes between two steps are seen.
            on_miss: is asked when a wave accesses what `memory` does not allow, with the address,
                the size and the access (bits of `layout`). It may add to `memory`, or replace parts
                of it; the access is tried again if it is allowed then, else it is a fault.
            seed: decides how waves interleave.
            arguments: see `Start`.
            asks: whether each barrier is a matter of `stopped`.
        """
        self._run = _function(run)
        self._code = code
        self._memory = memory
        self._on_miss = on_miss
        self._arguments = start.arguments.data
        self._table = Table((), ())
        self._prepare(start, asks)
        self.begin(arguments, seed)

    def _prepare(self, start: Start, asks: bool) -> None:
        """Sets up what all grids have in common that begin alike."""
        count, size = start.templates.shape
        slots = min(resident_groups(count, start.groups), start.most_groups)
        at = start.templates.ctypes.data
        templates = np.arange(at, at + count * size, size, dtype=np.uint64)
        stride = max(16, align_up(start.lds_bytes, 16))
        ids = np.array([[min(value, _MOST) for value in each] for each in start.ids], np.uint64)
        own = 0 if start.scratch else start.scratch_bytes
        private = np.array(start.scratch or [0] * (slots * count if own else 0), np.uint64)
        self._waves_per_group, self._wave_size = count, size
        self._lds = align_up(slots * count * size, layout.HEADER)
        self._scratch = align_up(self._lds + slots * stride, layout.HEADER)
        self._size = self._scratch + slots * count * own
        self._own, self._private, self._keep = own, private, (start, templates, ids)
        first = np.zeros(len(scheduler.FIELDS), np.uint64)
        for name, value in {
            "free": (1 << slots) - 1,
            "groups": min(start.groups, _MOST),
            "waves_per_group": count,
            "asks": int(asks),
            "wave_size": size,
            "row_size": start.wave.row,
            "templates": templates.ctypes.data,
            "lds_stride": stride,
            "lds_size": start.lds_bytes,
            "scratch": private.ctypes.data if len(private) else 0,
            "scratch_size": own,
            "ids": ids.ctypes.data,
            "id_count": len(ids),
            "users": start.users,
            "user_values": start.arguments.ctypes.data,
            "user_count": len(start.arguments) // 4 if start.users else 0,
            "place_row": start.place[0],
            "place_step": start.place[1],
        }.items():
            first[_PLACE[name]] = value
        fields = np.zeros_like(first)
        self._first, self._fields, self._address = first.data, fields.data, fields.ctypes.data

    def begin(self, arguments: bytes, seed: int) -> None:
        """Begins another grid that differs in its arguments alone, where the last one has ended."""
        self._arguments[:] = arguments
        self._circles: dict[int, tuple[int, Circle]] = {}
        self._waves: dict[int, Wave] = {}
        self.stands = False
        try:
            self._room = _ROOMS.pop()
        except IndexError:
            self._room = _NO_ROOM
        if len(self._room.memory) < self._size:
            memory = aligned_bytes(self._size)
            self._room = Room(memory, memory.ctypes.data)
        at, fields = self._room.address, self._fields
        fields[:] = self._first
        fields[_RANDOM] = (seed * 0x9E3779B97F4A7C15 + 1) % (1 << 64) or 1
        fields[_WAVES] = at
        fields[_LDS] = at + self._lds
        if self._own:
            first, end = at + self._scratch, at + self._size
            self._private[:] = np.arange(first, end, self._own, dtype=np.uint64)

    def release(self) -> None:
        """Gives back the memory of a grid that has ended; `begin` takes some anew."""
        if len(_ROOMS) < _MOST_ROOMS:
            _ROOMS.append(self._room)
        self._room = _NO_ROOM

    @property
    def instructions(self) -> int:
        """Executed by the waves that have ended, each once for all lanes that take it together."""
        return self._fields[_INSTRUCTIONS]

    def step(self, budget: int) -> bool:
        """Runs waves until they have used a budget up; True when the whole grid has ended.

        Each branch that a wave takes costs one, and so does a wave's stop on the way: at its end,
        at a barrier, where it misses memory. Raises what an instruction set has for faults; what
        was written before stays.
        """
        self._fields[_BUDGET] = budget
        self.stands = False
        while True:
            if self._memory.current is not self._table:
                self._take_ranges(self._memory.table())
            status = self._run(self._address)
            if status == scheduler.SPENT:
                return False
            if status == scheduler.ENDED:
                return True
            if status == scheduler.STANDS:
                self.stands = True
                return False
            number = self._get("wave")
            if status == scheduler.LOOKED:
                self._look(number)
                status = layout.SLICE
            self._stopped(number, self._wave(number), status)

    def finish(self, what: str) -> None:
        """Runs the grid to its end. Raises what `step` does, DeviceHang where no wave gets on."""
        while not self.step(_WHILE):
            if why := self.why_stuck():
                raise DeviceHang(f"{what} ({why})", None, "an end", 0.0)

    def why_stuck(self) -> str:
        """Why no wave gets on unless others write memory; empty where some may.

        Runs waves for a while to find out. Raises what `step` does.
        """
        if not self.stands:
            return ""
        self._set("closed", 0)
        living = self._members(self._get("live"))
        circles = [self._circle(number) for number in living]
        self.step(scheduler.LOOK * sum(2 + 2 * circle.length for circle in circles))
        if not self.stands:
            return ""
        waiting = self._get("waiting")
        return tell(
            (self._where(number), circle, bool(waiting >> number & 1))
            for number, circle in zip(living, circles, strict=True)
        )

    @abstractmethod
    def _stopped(self, number: int, wave: Wave, status: int) -> None:
        """A wave has stopped for what the loop over waves does not know."""

    @abstractmethod
    def _where(self, number: int) -> str:
        """Where a wave is, for messages."""

    @abstractmethod
    def _places(self, wave: Wave) -> list[int]:
        """Where the lanes of a wave are, as its code counts places."""

    @abstractmethod
    def _is_endless(self, wave: Wave) -> bool:
        """Whether no way leads from where a wave is to an end."""

    def _wave(self, number: int) -> Wave:
        found = self._waves.get(number)
        if found is None:
            first = number * self._wave_size
            found = Wave(self._room.memory[first : first + self._wave_size])
            self._waves[number] = found
        return found

    def _group_of(self, number: int) -> list[int]:
        """The waves of a wave's workgroup that live."""
        count = self._waves_per_group
        first = number // count * count
        return self._members(self._get("live") & ((1 << count) - 1) << first)

    def _members(self, chosen: int) -> list[int]:
        return [number for number in range(scheduler.RESIDENT) if chosen >> number & 1]

    def _get(self, field: str) -> int:
        return self._fields[_PLACE[field]]

    def _set(self, field: str, value: int) -> None:
        self._fields[_PLACE[field]] = value

    def _mark(self, field: str, number: int, on: bool = True) -> None:
        """Puts a wave into a set, or takes it out."""
        chosen = self._get(field)
        self._set(field, chosen | 1 << number if on else chosen & ~(1 << number))

    def _circle(self, number: int) -> Circle:
        """What is known of where a wave goes round."""
        group = self._wave(number).word(layout.GROUP, "<Q")
        known, circle = self._circles.get(number, (-1, Circle()))
        if known != group:
            circle = Circle()
            self._circles[number] = (group, circle)
        return circle

    def _look(self, number: int) -> None:
        """Whether a wave goes round in a circle."""
        wave, code = self._wave(number), self._code
        found = self._circle(number).look(
            wave.state(),
            lambda: all(is_plain_loop(code, place) for place in self._places(wave)),
            lambda: self._is_endless(wave),
        )
        if found is Found.ENDLESS:
            self._mark("endless", number)
        elif found is Found.CLOSED:
            self._mark("closed", number)
        elif found is not Found.NOTHING:
            self._mark("circling", number, found is Found.CIRCLE)

    def _take_ranges(self, table: Table) -> None:
        """Tells the waves what addresses mean, which has changed."""
        self._table = table
        for fields in self._fields, self._first:  # the next grid begins with them
            fields[_RANGES], fields[_COUNT] = table.address, table.count
            fields[_OFFERS] = table.offers

    def _fill(self, wave: Wave, access: int) -> bool:
        """Asks the owner of the memory for what a wave has missed; whether it has it now."""
        address, size = wave.word(layout.FAULT_ADDRESS, "<Q"), wave.word(layout.FAULT_SIZE)
        if self._on_miss is None or self._memory.allows(address, size, access):
            return False  # it was there: what is wrong is another thing
        self._on_miss(address, size, access)
        return self._memory.allows(address, size, access)
