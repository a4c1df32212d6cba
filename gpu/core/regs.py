"""Register maps: which register is at which address of a window.

    RING = {"RB_CNTL": (0x0F00, RB_CNTL), "RB_WPTR": (0x0F08, RB_WPTR)}
    ring = RegMap(window, RING, base=0x4000)
    ring.write(RB_CNTL(ENABLE=1))
    ring.modify(RB_CNTL, SIZE=9)
    ring.read(RB_WPTR).OFFSET
    ring.name_of(0x4F08)              # "RB_WPTR"

One map of names serves live access, traces and documents. A `RegTable` is such a map made from
generated tables; its classes are built when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, overload

from gpu.core.errors import InvalidIndex, InvalidValue
from gpu.core.register import Access, Field, Register, field, register_from_table
from gpu.core.window import Window

__all__ = [
    "Access",
    "Field",
    "RegArray",
    "RegMap",
    "RegTable",
    "Register",
    "field",
    "register_from_table",
]

RegisterT = TypeVar("RegisterT", bound=Register)


class RegArray(NamedTuple):
    """``length`` registers of one class; the one of index i is at ``offset + i * stride`` bytes."""

    offset: int
    register: type[Register]
    length: int
    stride: int


Entry = tuple[int, type[Register]] | RegArray
TableEntry = tuple[int, Sequence[tuple[str, int, int]]]


class RegTable(Mapping[str, Entry]):
    """Registers of a generated table: name -> (offset in bytes, [(field, lowest bit, width)]).

    Usable wherever a map of hand-written registers is; may be shared by many `RegMap`s.
    """

    def __init__(self, table: Mapping[str, TableEntry], bits: int = 32):
        self._table = table
        self._bits = bits
        self._built: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        if name not in self._built:
            offset, fields = self._table[name]
            self._built[name] = (offset, register_from_table(name, fields, self._bits))
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def offsets(self) -> Iterator[tuple[str, int]]:
        """All names with their offsets, without building their classes."""
        return ((name, entry[0]) for name, entry in self._table.items())


class RegMap:
    """The registers of one block, live in a window.

    A register is named by its name in the map or, where the map has it under the class's own name,
    by its class, which also gives the result its type. Entries of a `RegArray` need an index.
    ``base`` is the block's offset in the window; `at` gives other instances of the block.
    Raises `InvalidIndex` for a name or index that is not there.
    """

    def __init__(self, window: Window, registers: Mapping[str, Entry], base: int = 0):
        self.window = window
        self.registers = registers
        self.base = base
        self._names: dict[int, str] | None = None

    def at(self, base: int) -> RegMap:
        """Another instance of the same block, at another base."""
        return RegMap(self.window, self.registers, base)

    @overload
    def read(self, which: type[RegisterT], index: int | None = None) -> RegisterT: ...
    @overload
    def read(self, which: str, index: int | None = None) -> Register: ...
    def read(self, which: str | type[Register], index: int | None = None) -> Register:
        """Read a register: one access of its width."""
        register, offset = self._find(which, index)
        return register.parse(self.window.read(offset, register.bits // 8))

    def write(self, register: Register, name: str | None = None, index: int | None = None) -> None:
        """Write a register, to the entry ``name`` where it is not its class's name."""
        cls, offset = self._find(type(register) if name is None else name, index)
        if cls is not type(register):
            raise InvalidValue(f"{name} is a {cls.__name__}, not a {type(register).__name__}")
        self.window.write(offset, cls.bits // 8, register.value)

    def modify(
        self, which: str | type[Register], index: int | None = None, /, **fields: int
    ) -> None:
        """Read a register, change some fields and write it back.

        Fields that are cleared by writing ones are written as 0 unless named, so that nothing is
        cleared by chance; to name a read-only field is `InvalidValue`.
        """
        cls, offset = self._find(which, index)
        value = self.window.read(offset, cls.bits // 8)
        for name in fields:
            if cls.field(name).access == "ro":
                raise InvalidValue(f"{cls.__name__}.{name} is read-only: it cannot be modified")
        for other in cls.fields.values():
            if other.access == "w1c":
                value &= ~other.mask
        self.window.write(offset, cls.bits // 8, cls.parse(value).replace(**fields).value)

    def offset_of(self, which: str | type[Register], index: int | None = None) -> int:
        """Where a register is in the window."""
        return self._find(which, index)[1]

    def name_of(self, offset: int) -> str | None:
        """The name of what is at an offset of the window, ``NAME[i]`` in arrays; None if nothing.

        Of several names of one address it is the first in the map.
        """
        if self._names is None:
            self._names = {}
            for name, at in self._all_offsets():
                self._names.setdefault(at, name)
        return self._names.get(offset - self.base)

    def _all_offsets(self) -> Iterator[tuple[str, int]]:
        if isinstance(self.registers, RegTable):
            yield from self.registers.offsets()
            return
        for name, entry in self.registers.items():
            if isinstance(entry, RegArray):
                for i in range(entry.length):
                    yield f"{name}[{i}]", entry.offset + i * entry.stride
            else:
                yield name, entry[0]

    def _find(self, which: str | type[Register], index: int | None) -> tuple[type[Register], int]:
        """The class and the offset in the window of an entry."""
        name = which if isinstance(which, str) else which.__name__
        entry = self.registers.get(name)
        if entry is None:
            raise InvalidIndex(f"there is no register {name} in this map of {len(self.registers)}")
        register = entry[1]
        if not isinstance(which, str) and register is not which:
            raise InvalidValue(f"{name} is another class of that name here: read it by its name")
        if not isinstance(entry, RegArray):
            if index is not None:
                raise InvalidIndex(f"{name} is one register, not an array: index {index}")
            return register, self.base + entry[0]
        if index is None or not 0 <= index < entry.length:
            raise InvalidIndex(f"{name} has {entry.length} registers: index {index}")
        return register, self.base + entry.offset + index * entry.stride
