"""Registers of BAR 0: which there are, what they hold, and who is told of an access.

A register that the model does not have is refused: a record says what was asked for, reads bring
ones and writes are lost. Locked ones (their privilege mask, or their block's) read 0xBADF41xx, as
kern_fsp_gh100.c and Linux's nouveau, gsp/gh100.c, look for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpu.sim.record import DebugChannel

BAR_BYTES: Final = 16 << 20
ONES: Final = 0xFFFFFFFF
LOCKED: Final = 0xBADF4100
Reader = Callable[[], int]
Writer = Callable[[int], None]


class Refused(Exception):
    """An access that the chip does not take, and why."""


@dataclass(slots=True)
class Register:
    """A register.

    Attributes:
        name: as the headers call it.
        value: what it holds; `initial` after a reset.
        read, write: who answers for it; without them it is the value.
        is_writable: whether a driver may write it at all.
    """

    name: str
    initial: int
    value: int
    read: Reader | None
    write: Writer | None
    is_writable: bool


class Registers:
    """All registers of a card, by their byte address.

    Attributes:
        is_locked: tells whether the driver is kept from a register, by its address.
    """

    def __init__(self, title: str, debug: DebugChannel, lenient: bool = False):
        """`lenient` is for drivers of others: unknown registers are noted and not refused."""
        self._title = title
        self._debug = debug
        self._lenient = lenient
        self._all: dict[int, Register] = {}
        self._at: dict[str, int] = {}
        self._spans: list[tuple[str, range, Callable[[int], int]]] = []
        self.is_locked: Callable[[int], bool] = lambda address: False

    def add(
        self,
        name: str,
        address: int,
        value: int = 0,
        read: Reader | None = None,
        write: Writer | None = None,
        writable: bool = True,
    ) -> None:
        """A register; `writable` ones without a writer keep what is written."""
        assert address not in self._all, f"{name} and {self._all[address].name} at {address:#x}"
        self._all[address] = Register(name, value, value, read, write, writable)
        self._at[name] = address

    def add_span(self, name: str, place: range, read: Callable[[int], int]) -> None:
        """Words that are only read, each by its offset in the span."""
        self._spans.append((name, place, read))

    def value(self, name: str) -> int:
        """What a register holds."""
        return self._all[self._at[name]].value

    def set(self, name: str, value: int) -> None:
        """Changes what a register holds, with nobody told."""
        self._all[self._at[name]].value = value & ONES

    def reset(self) -> None:
        """All hold what they do after power-on."""
        for register in self._all.values():
            register.value = register.initial

    def read(self, offset: int, width: int) -> int:
        """An access."""
        register = self._find(offset, width, "read")
        if register is None:
            return (1 << 8 * width) - 1
        if self.is_locked(offset):
            return LOCKED
        try:
            return register.read() if register.read else register.value
        except Refused as refused:
            self.refuse(f"a read of {register.name}: {refused}")
            return ONES

    def write(self, offset: int, width: int, value: int) -> None:
        """An access."""
        register = self._find(offset, width, "write")
        if register is None:
            return
        what = f"a write of {value:#x} to {register.name}"
        if self.is_locked(offset):
            self.refuse(f"{what}, which is locked")
            return
        if not register.is_writable:
            self.refuse(f"{what}, which is read-only")
            return
        try:
            if register.write:
                register.write(value)
            else:
                register.value = value
        except Refused as refused:
            self.refuse(f"{what}: {refused}")

    def refuse(self, what: str) -> None:
        """Records what may not be done."""
        self._debug.violation(f"{self._title}: {what}")

    def _find(self, offset: int, width: int, what: str) -> Register | None:
        if width != 4:
            self.refuse(f"a {what} of {width} bytes at {offset:#x} of BAR 0: registers have 4")
            return None
        register = self._all.get(offset) or self._in_span(offset)
        if register is None:
            said = f"a {what} of register {offset:#x}, which the model does not have"
            if self._lenient:
                self._debug.note(f"{self._title}: {said}")
            else:
                self.refuse(said)
        return register

    def _in_span(self, offset: int) -> Register | None:
        for name, place, read in self._spans:
            if offset in place:
                at = offset - place.start
                return Register(f"{name}({at:#x})", 0, 0, partial(read, at), None, False)
        return None
