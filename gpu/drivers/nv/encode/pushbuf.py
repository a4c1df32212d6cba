"""Pushbuffers: methods as words that a channel fetches, and the ring entries that point at them.

    push = Pushbuffer(compute=ids.HOPPER_COMPUTE_A).bind(Engine.COMPUTE)
    push.write(WFI(SCOPE=1), *release(signal, 3))
    bytes(push.data), push.patches

Methods that stand at rising addresses of one subchannel share a header. A value may be a symbol:
then the word is zero where the symbol belongs, and a patch of segment 0 puts it in.

Formats of headers and entries: clc56f.h of open-gpu-doc.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import Final, Self, TypeVar

from gpu.core.bits import mask
from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.regs import Field, Register, field
from gpu.drivers.nv.encode.methods import host
from gpu.drivers.nv.encode.methods.compute import COMPUTE_CLASSES
from gpu.drivers.nv.encode.methods.copy import COPY_CLASSES
from gpu.drivers.nv.encode.methods.method import Engine, Method, MethodSet
from gpu.hcq.encoder import Patch
from gpu.hcq.symbol import Symbol, Value

ENTRY_SIZE: Final = 8
MAX_COUNT: Final = 0x1FFF  # methods behind one header
MAX_ENTRY_DWORDS: Final = 0x1F_FFFF
VA_LIMIT: Final = 1 << 40
"""Ring entries and launches hold 40 bits of an address; longer ones need another base."""

FETCHED_BITS: Final = 38  # of a ring entry: the address, from bit 2 on


class Opcode(IntEnum):
    """How a header counts."""

    INC = 1  # each word goes to the next method
    NON_INC = 3  # all words go to the same method
    IMMD = 4  # the data is in the header, where the count would be
    ONE_INC = 5  # the second word and all others go to the next method
    END_PB_SEGMENT = 7


class Header(Register):
    """The word before data."""

    ADDRESS = field(11, 0, doc="of the method, in words")
    SUBCHANNEL = field(15, 13)
    COUNT = field(28, 16, doc="words that follow, or data")
    OPCODE = field(31, 29)


class GpEntry(Register, bits=64):
    """An entry of a channel's ring. With a length of 0 it is a control entry."""

    FETCH_CONDITIONAL = field(0)
    GET = field(39, 2, doc="the address, in words")
    SUBROUTINE = field(41)
    LENGTH = field(62, 42, doc="in words")
    SYNC_WAIT = field(63, doc="fetch only once what is before is executed")


@dataclass(frozen=True, slots=True)
class Late:
    """A method of which a field is a symbol's bits from ``shift`` on."""

    method: Method
    field: Field[int]
    symbol: Symbol
    shift: int


Item = Method | Late
MethodT = TypeVar("MethodT", bound=Method)


def part(method: type[MethodT], name: str, value: Value, shift: int = 0) -> MethodT | Late:
    """A method with one field: the bits of a value from ``shift`` on, as many as it has."""
    bits = method.field(name)
    if isinstance(value, Symbol):
        return Late(method(), bits, value, shift)
    return method(**{name: value >> shift & bits.largest})


def check_address(what: str, address: Value, align: int = 1, limit: int = VA_LIMIT) -> None:
    """Raises InvalidValue for an address beyond ``limit`` or off its alignment; symbols pass."""
    if isinstance(address, Symbol):
        return
    if not 0 <= address < limit:
        raise InvalidValue(f"{what} at {address:#x}: addresses here are below {limit:#x}")
    if address % align:
        raise InvalidValue(f"{what} at {address:#x}: give a multiple of {align}")


def methods_of(class_id: int) -> MethodSet:
    """The methods of a compute or copy class. Raises Unsupported for a class not in the tables."""
    found = COMPUTE_CLASSES.get(class_id) or COPY_CLASSES.get(class_id)
    if found is None:
        known = ", ".join(f"{number:#x}" for number in (*COMPUTE_CLASSES, *COPY_CLASSES))
        raise Unsupported(f"methods of class {class_id:#x} are not known here; those are: {known}")
    return found


class Pushbuffer:
    """Collects methods as words; ``compute`` and ``copy`` are the classes that the channel has.

    A method that the channel's classes lack is Unsupported.
    """

    def __init__(self, *, compute: int | None = None, copy: int | None = None):
        self.data = bytearray()
        self.patches: list[Patch] = []
        self._classes = {
            engine: number
            for engine, number in ((Engine.COMPUTE, compute), (Engine.COPY, copy))
            if number is not None
        }
        self._methods = {engine: methods_of(number) for engine, number in self._classes.items()}
        self._methods[Engine.HOST] = host.HOST

    def has(self, method: type[Method]) -> bool:
        """Whether the channel's classes have a method."""
        return method.engine in self._methods and method in self._methods[method.engine]

    def bind(self, engine: Engine) -> Self:
        """Binds the engine's class to its subchannel; first of all, once a channel."""
        self._check_known(engine)
        self._header(Opcode.INC, engine, host.SET_OBJECT.address, 1)
        return self._words([host.SET_OBJECT(NVCLASS=self._classes[engine])])

    def write(self, *items: Item) -> Self:
        """Methods, in order."""
        for item in items:
            self._check(type(_method(item)))
        for run in _runs(items):
            first = _method(run[0])
            self._header(Opcode.INC, first.engine, first.address, len(run))
            self._words(run)
        return self

    def _check(self, method: type[Method]) -> None:
        self._check_known(method.engine)
        known = self._methods[method.engine]
        if method not in known:
            raise Unsupported(f"{method.__name__} is no method of {known.name}")

    def _check_known(self, engine: Engine) -> None:
        if engine not in self._methods:
            raise Unsupported(f"a pushbuffer for a channel without {engine.name.lower()} class")

    def _header(self, opcode: Opcode, engine: Engine, address: int, count: int) -> None:
        word = Header(ADDRESS=address >> 2, SUBCHANNEL=engine, COUNT=count, OPCODE=opcode)
        self.data += word.value.to_bytes(4, "little")

    def _words(self, items: Iterable[Item]) -> Self:
        for item in items:
            if isinstance(item, Late):
                lo, largest = item.field.lo, item.field.largest
                patch = Patch(0, len(self.data), 4, item.shift, largest, item.symbol, position=lo)
                self.patches.append(patch)
            self.data += _method(item).value.to_bytes(4, "little")
        return self


def _method(item: Item) -> Method:
    return item.method if isinstance(item, Late) else item


def _runs(items: Sequence[Item]) -> list[list[Item]]:
    """Methods that may share a header: at rising addresses of one subchannel."""
    runs: list[list[Item]] = [[item] for item in items[:1]]
    for before, item in pairwise(items):
        last, this = _method(before), _method(item)
        follows = this.address == last.address + 4 and this.engine is last.engine
        if follows and len(runs[-1]) < MAX_COUNT:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def gp_entry(address: int, dwords: int, *, wait: bool = False) -> int:
    """The ring entry that fetches a pushbuffer.

    ``wait`` fetches it only once what is before is executed. Raises InvalidValue for an address
    that is no multiple of 4 below 1 << 40, and for a length of 0 (another kind of entry) or more
    than 21 bits.
    """
    check_address("pushbuffer", address, 4)
    if not 1 <= dwords <= MAX_ENTRY_DWORDS:
        raise InvalidValue(f"pushbuffer of {dwords} words: give 1 to {MAX_ENTRY_DWORDS}")
    return GpEntry(GET=address >> 2, LENGTH=dwords, SYNC_WAIT=int(wait)).value


def gp_entry_patch(target: Symbol, addend: int) -> Patch:
    """What puts the address of a pushbuffer into the ring entry at offset 0 of segment 0."""
    return Patch(0, 0, ENTRY_SIZE, 2, mask(FETCHED_BITS - 1), target, addend, position=2)


def moved(patches: Iterable[Patch], segment: int, by: int = 0) -> list[Patch]:
    """Patches for bytes that now begin ``by`` bytes into segment ``segment``."""
    return [replace(patch, segment=segment, offset=patch.offset + by) for patch in patches]
