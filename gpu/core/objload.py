"""Loading relocatable objects into this process.

Takes what LLVM emits for x86-64 and arm64 with the relocation model ``pic`` and the small code
model. Sections are laid out in at most three segments - code, constants with the global offset
table (GOT), variables - near each other; calls to other code go through stubs and GOT slots, so
that what is called may lie anywhere. The compiler is not needed: a cached object loads without it.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpu.core import elf
from gpu.core.devspec import did_you_mean
from gpu.core.elf import ElfObject, Relocation, Section, Symbol, parse_object
from gpu.core.errors import CompileError, FormatError, InvalidValue
from gpu.core.execmem import PAGE_SIZE, ExecutableMemory, Protection, Segment
from gpu.core.relocate import MACHINES, Machine, Rule, Site, Wants

IMAGE_LIMIT: Final = 1 << 30
"""Largest image in bytes: all of it is within reach of 32-bit offsets."""
_SLOT_SIZE: Final = 8
_NOT_LOADED: Final = (".eh_frame",)  # unwind tables: nothing throws through kernels
_MACHINE_OF_HOST: Final = {
    "x86_64": elf.EM_X86_64,
    "aarch64": elf.EM_AARCH64,
    "arm64": elf.EM_AARCH64,
}
_LAYOUT_ORDER: Final = (Protection.EXECUTE, Protection.READ, Protection.WRITE)


@dataclass(frozen=True, slots=True)
class Piece:
    """Initialised bytes of a linked image: where they belong, and what they are."""

    segment: int
    offset: int
    content: bytes | bytearray


class Linker:
    """An object laid out, ready to be linked at any address.

    Attributes:
        segments: the memory it needs; `link` takes the address of each.
    """

    def __init__(self, data: bytes):
        """Reads and lays out an object.

        Raises FormatError for a malformed one and CompileError for what this loader does not do.
        """
        self._object: ElfObject = parse_object(data)
        self.machine: Machine = _machine(self._object.machine)
        self._sizes = dict.fromkeys(_LAYOUT_ORDER, 0)
        self._section_places: dict[int, tuple[Protection, int]] = {}
        for section in self._object.sections:
            if section.flags & elf.SHF_ALLOC and section.size and section.name not in _NOT_LOADED:
                place = self._reserve(_protection(section), section.size, section.align)
                self._section_places[section.index] = place
        self._relocations = [
            (relocation, self._rule(relocation))
            for relocation in self._object.relocations
            if relocation.section in self._section_places
        ]
        self._stubs: dict[int, tuple[Protection, int]] = {}
        self._slots: dict[int, tuple[Protection, int]] = {}
        for relocation, rule in self._relocations:
            self._reserve_helpers(relocation.symbol, rule.wants)
        used = [protection for protection in _LAYOUT_ORDER if self._sizes[protection]]
        self._segment_index = {protection: i for i, protection in enumerate(used)}
        self.segments = [Segment(self._sizes[protection], protection) for protection in used]

    def link(self, bases: Sequence[int], externals: Mapping[str, int]) -> list[Piece]:
        """The image's bytes for segments at addresses `bases`.

        `externals` gives the addresses of symbols that the object uses and does not define. Raises
        CompileError for one that is missing or out of reach, FormatError for a malformed object.
        """
        sections = self._object.sections
        contents = {i: bytearray(sections[i].content) for i in self._section_places}
        for relocation, rule in self._relocations:
            self._relocate(relocation, rule, contents[relocation.section], bases, externals)
        pieces = [
            self._piece(place, contents[index]) for index, place in self._section_places.items()
        ]
        for symbol, place in self._slots.items():
            address = self._symbol_address(self._object.symbols[symbol], bases, externals)
            pieces.append(self._piece(place, address.to_bytes(_SLOT_SIZE, "little")))
        for symbol, place in self._stubs.items():
            slot = self._address(self._slots[symbol], bases)
            pieces.append(
                self._piece(place, self.machine.make_stub(self._address(place, bases), slot))
            )
        return pieces

    def exports(self, bases: Sequence[int]) -> dict[str, int]:
        """The address of every named symbol the object defines; a global one hides a local."""
        named = [
            symbol
            for symbol in self._object.symbols
            if symbol.name
            and symbol.section in self._section_places
            and symbol.type not in (elf.STT_SECTION, elf.STT_FILE)
        ]
        named.sort(key=lambda symbol: symbol.binding != elf.STB_LOCAL)
        return {symbol.name: self._symbol_address(symbol, bases, {}) for symbol in named}

    def _reserve(self, protection: Protection, size: int, align: int) -> tuple[Protection, int]:
        if align > PAGE_SIZE:
            raise CompileError(f"alignment {align} of a section exceeds the page size {PAGE_SIZE}")
        offset = (self._sizes[protection] + align - 1) & -align
        self._sizes[protection] = offset + size
        if sum(self._sizes.values()) > IMAGE_LIMIT:
            raise FormatError(f"the object needs more than {IMAGE_LIMIT} bytes of memory")
        return protection, offset

    def _reserve_helpers(self, index: int, wants: Wants) -> None:
        """Makes room for the stub and GOT slot that a relocation to symbol `index` needs."""
        outside = self._object.symbols[index].section == elf.SHN_UNDEF
        needs_stub = wants is Wants.CALLEE and outside
        if needs_stub and index not in self._stubs:
            self._stubs[index] = self._reserve(Protection.EXECUTE, self.machine.stub_size, 4)
        if (needs_stub or wants is Wants.GOT_SLOT) and index not in self._slots:
            self._slots[index] = self._reserve(Protection.READ, _SLOT_SIZE, _SLOT_SIZE)

    def _rule(self, relocation: Relocation) -> Rule:
        rule = self.machine.rules.get(relocation.type)
        size = len(self._object.sections[relocation.section].content)
        if rule is None:
            raise CompileError(
                f"{self._where(relocation)}: {self.machine.name} relocation type {relocation.type}"
                " is not supported; compile with relocation model pic and the small code model"
            )
        if relocation.offset + rule.size > size:
            raise FormatError(f"{self._where(relocation)}: {rule.name} is past the {size} bytes")
        return rule

    def _where(self, relocation: Relocation) -> str:
        section = self._object.sections[relocation.section].name
        symbol = self._object.symbols[relocation.symbol].name
        return f"section {section} at {relocation.offset:#x}, symbol {symbol!r}"

    def _relocate(
        self,
        relocation: Relocation,
        rule: Rule,
        content: bytearray,
        bases: Sequence[int],
        externals: Mapping[str, int],
    ) -> None:
        _, offset, _, index, addend = relocation
        symbol = self._object.symbols[index]
        if rule.wants is Wants.GOT_SLOT:
            target = self._address(self._slots[index], bases)
        elif rule.wants is Wants.CALLEE and index in self._stubs:
            target = self._address(self._stubs[index], bases)
        else:
            target = self._symbol_address(symbol, bases, externals)
        place = self._address(self._section_places[relocation.section], bases) + offset
        section = self._object.sections[relocation.section].name
        rule.apply(Site(content, offset, place, target, addend, section, symbol.name, rule.name))

    def _symbol_address(
        self, symbol: Symbol, bases: Sequence[int], externals: Mapping[str, int]
    ) -> int:
        if symbol.type in (elf.STT_TLS, elf.STT_GNU_IFUNC):
            raise CompileError(f"symbol {symbol.name!r} is of ELF type {symbol.type}, unsupported")
        if symbol.section == elf.SHN_UNDEF:
            return _external(symbol, externals)
        if symbol.section == elf.SHN_ABS:
            return symbol.value
        place = self._section_places.get(symbol.section)
        if place is None:
            raise FormatError(
                f"symbol {symbol.name!r} is in section {symbol.section}, which is not loaded"
            )
        size = self._object.sections[symbol.section].size
        if symbol.value > size:
            raise FormatError(f"symbol {symbol.name!r} at {symbol.value:#x} of {size:#x} bytes")
        return self._address(place, bases) + symbol.value

    def _address(self, place: tuple[Protection, int], bases: Sequence[int]) -> int:
        protection, offset = place
        return bases[self._segment_index[protection]] + offset

    def _piece(self, place: tuple[Protection, int], content: bytes | bytearray) -> Piece:
        protection, offset = place
        return Piece(self._segment_index[protection], offset, content)


class LoadedObject:
    """An object in memory, ready to run until `close()` or until it is collected."""

    def __init__(self, memory: ExecutableMemory, exports: Mapping[str, int]):
        self._memory = memory
        self._exports = dict(exports)

    def address(self, symbol: str) -> int:
        """The address of a symbol the object defines. Raises InvalidValue for any other."""
        if symbol not in self._exports:
            raise InvalidValue(
                f"the object defines no symbol {symbol!r}{did_you_mean(symbol, self._exports)}"
            )
        return self._exports[symbol]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names that `address` knows."""
        return tuple(self._exports)

    def close(self) -> None:
        """Frees the memory: every address is invalid from here on."""
        self._exports.clear()
        self._memory.close()


def load_object(data: bytes, symbols: Mapping[str, int]) -> LoadedObject:
    """Loads an object for this machine.

    `symbols` gives the addresses of what it may use from outside, as integers. Raises FormatError
    for a malformed object, CompileError for one that is for another machine, that uses a symbol
    not in `symbols` or a feature this does not support, and what `ExecutableMemory` raises.
    """
    linker = Linker(data)
    host = MACHINES.get(_MACHINE_OF_HOST.get(platform.machine(), -1))
    if linker.machine is not host:
        raise CompileError(
            f"the object is for {linker.machine.name}, this machine is {platform.machine()}"
        )
    memory = ExecutableMemory(linker.segments)
    bases = [memory.address(index) for index in range(len(linker.segments))]
    for piece in linker.link(bases, symbols):
        memory.write(piece.segment, piece.content, piece.offset)
    exports = linker.exports(bases)
    memory.seal()
    return LoadedObject(memory, exports)


def _machine(number: int) -> Machine:
    if number not in MACHINES:
        known = ", ".join(f"{m.name} ({n})" for n, m in MACHINES.items())
        raise CompileError(f"ELF machine {number} is not supported; supported: {known}")
    return MACHINES[number]


def _protection(section: Section) -> Protection:
    unsupported = {
        "thread-local": section.flags & elf.SHF_TLS,
        "compressed": section.flags & elf.SHF_COMPRESSED,
        "a list of constructors": section.type in (elf.SHT_INIT_ARRAY, elf.SHT_FINI_ARRAY),
        "writable and executable": section.flags & elf.SHF_WRITE
        and section.flags & elf.SHF_EXECINSTR,
    }
    for what, present in unsupported.items():
        if present:
            raise CompileError(f"section {section.name} is {what}, which is not supported")
    if section.flags & elf.SHF_EXECINSTR:
        return Protection.EXECUTE
    return Protection.WRITE if section.flags & elf.SHF_WRITE else Protection.READ


def _external(symbol: Symbol, externals: Mapping[str, int]) -> int:
    address = externals.get(symbol.name)
    if address is None:
        if symbol.binding == elf.STB_WEAK:
            return 0
        raise CompileError(
            f"undefined symbol {symbol.name!r}: the code needs it, and it is not among the"
            f" {len(externals)} symbols provided"
        )
    if not 0 <= address < 1 << 64:
        raise InvalidValue(f"address {address:#x} of symbol {symbol.name!r} is not 64-bit")
    return address
