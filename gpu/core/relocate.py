"""How relocations of x86-64 and arm64 code are applied.

Numbers and formulas: "System V ABI, AMD64 Architecture Processor Supplement", table of relocation
types, and "ELF for the Arm 64-bit Architecture" (aaelf64), sections on static relocations. In their
notation S is the symbol's address, A the addend, P the place patched and G the address of the
symbol's slot in the global offset table (GOT).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpu.core.elf import EM_AARCH64, EM_X86_64
from gpu.core.errors import CompileError, FormatError

_MASK64: Final = (1 << 64) - 1
_PAGE_BITS: Final = 12  # of ADRP, whatever the system's page size


class Wants(enum.Enum):
    """What a relocation wants the address of."""

    SYMBOL = enum.auto()
    GOT_SLOT = enum.auto()
    CALLEE = enum.auto()  # the symbol, or a near stub that jumps to it


@dataclass(slots=True)
class Site:
    """A place to patch.

    Attributes:
        content: the section's bytes, patched in place.
        offset: where in `content`; as many bytes as the rule is wide are there.
        place: the address the place will have (P).
        target: the address wanted (S, or G for `Wants.GOT_SLOT`).
        addend: A.
        section: name of the section, for messages.
        symbol: name of the symbol, for messages.
        rule: name of the relocation type, for messages.
    """

    content: bytearray
    offset: int
    place: int
    target: int
    addend: int
    section: str
    symbol: str
    rule: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.section}+{self.offset:#x} to symbol {self.symbol!r}"

    @property
    def relative(self) -> int:
        """S + A - P."""
        return self.target + self.addend - self.place

    def store(self, value: int, size: int) -> None:
        """Writes the low `size` bytes of `value`."""
        masked = value & ((1 << 8 * size) - 1)
        self.content[self.offset : self.offset + size] = masked.to_bytes(size, "little")

    def check(self, value: int, low_bits: int, high_bits: int) -> None:
        """Raises CompileError unless -2**low_bits <= value < 2**high_bits."""
        low = -(1 << low_bits) if low_bits else 0
        if not low <= value < 1 << high_bits:
            raise CompileError(f"{self}: {value:#x} is out of range ({low:#x} to 2**{high_bits})")

    def set_bits(self, value: int, low: int, width: int) -> None:
        """Replaces `width` bits from bit `low` on of the 32-bit instruction."""
        mask = (1 << width) - 1
        word = int.from_bytes(self.content[self.offset : self.offset + 4], "little")
        self.store(word & ~(mask << low) | (value & mask) << low, 4)


@dataclass(frozen=True, slots=True)
class Rule:
    """A relocation type: its name, how many bytes it patches, of what, and how."""

    name: str
    size: int
    wants: Wants
    apply: Callable[[Site], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the loader must know of an instruction set.

    Attributes:
        name: for messages.
        rules: by relocation type number.
        stub_size: bytes of a call stub.
        make_stub: (address of the stub, address of a GOT slot) -> code that jumps to where the
            slot points, clobbering at most the registers the calling convention leaves for that.
    """

    name: str
    rules: Mapping[int, Rule]
    stub_size: int
    make_stub: Callable[[int, int], bytes]


def _absolute64(site: Site) -> None:
    site.store(site.target + site.addend, 8)


def _absolute32(site: Site, low_bits: int, high_bits: int) -> None:
    value = site.target + site.addend
    site.check(value, low_bits, high_bits)
    site.store(value, 4)


def _relative32(site: Site, high_bits: int) -> None:
    site.check(site.relative, 31, high_bits)
    site.store(site.relative, 4)


def _relative64(site: Site) -> None:
    site.store(site.relative, 8)


_X86_RELATIVE: Final = partial(_relative32, high_bits=31)
_X86_RULES: Final = {
    1: Rule("R_X86_64_64", 8, Wants.SYMBOL, _absolute64),
    2: Rule("R_X86_64_PC32", 4, Wants.SYMBOL, _X86_RELATIVE),
    4: Rule("R_X86_64_PLT32", 4, Wants.CALLEE, _X86_RELATIVE),
    9: Rule("R_X86_64_GOTPCREL", 4, Wants.GOT_SLOT, _X86_RELATIVE),
    10: Rule("R_X86_64_32", 4, Wants.SYMBOL, partial(_absolute32, low_bits=0, high_bits=32)),
    11: Rule("R_X86_64_32S", 4, Wants.SYMBOL, partial(_absolute32, low_bits=31, high_bits=31)),
    41: Rule("R_X86_64_GOTPCRELX", 4, Wants.GOT_SLOT, _X86_RELATIVE),
    42: Rule("R_X86_64_REX_GOTPCRELX", 4, Wants.GOT_SLOT, _X86_RELATIVE),
}


def _x86_stub(stub: int, slot: int) -> bytes:
    """jmp *[rip + displacement]; the displacement counts from the end of the 6 bytes."""
    return b"\xff\x25" + struct.pack("<i", slot - (stub + 6)) + b"\xcc\xcc"


def _instruction(site: Site) -> None:
    if site.offset % 4:
        raise FormatError(f"{site}: not at the start of an instruction")


def _adrp(site: Site) -> None:
    _instruction(site)
    pages = ((site.target + site.addend) >> _PAGE_BITS) - (site.place >> _PAGE_BITS)
    site.check(pages, 20, 20)
    site.set_bits(pages, 29, 2)
    site.set_bits(pages >> 2, 5, 19)


def _low12(site: Site, scale: int) -> None:
    """The offset in a 4 KiB page, as the immediate of an add or of an access of 2**scale bytes."""
    _instruction(site)
    low = (site.target + site.addend) & 0xFFF
    if low & ((1 << scale) - 1):
        raise FormatError(f"{site}: offset {low:#x} is not a multiple of {1 << scale}")
    site.set_bits(low >> scale, 10, 12)


def _branch26(site: Site) -> None:
    _instruction(site)
    if site.relative % 4:
        raise FormatError(f"{site}: the target is not the start of an instruction")
    site.check(site.relative, 27, 27)
    site.set_bits(site.relative >> 2, 0, 26)


def _in_slot(apply: Callable[[Site], None], site: Site) -> None:
    """Applies to a GOT slot's address; the ABI puts the addend in the slot, LLVM uses none."""
    if site.addend:
        raise FormatError(f"{site}: addend {site.addend} of a GOT slot is not supported")
    apply(site)


def _arm_rules() -> dict[int, Rule]:
    """Relocation types of aaelf64."""
    rules = {
        257: Rule("R_AARCH64_ABS64", 8, Wants.SYMBOL, _absolute64),
        260: Rule("R_AARCH64_PREL64", 8, Wants.SYMBOL, _relative64),
        261: Rule("R_AARCH64_PREL32", 4, Wants.SYMBOL, partial(_relative32, high_bits=32)),
        275: Rule("R_AARCH64_ADR_PREL_PG_HI21", 4, Wants.SYMBOL, _adrp),
        277: Rule("R_AARCH64_ADD_ABS_LO12_NC", 4, Wants.SYMBOL, partial(_low12, scale=0)),
        282: Rule("R_AARCH64_JUMP26", 4, Wants.CALLEE, _branch26),
        283: Rule("R_AARCH64_CALL26", 4, Wants.CALLEE, _branch26),
        311: Rule("R_AARCH64_ADR_GOT_PAGE", 4, Wants.GOT_SLOT, partial(_in_slot, _adrp)),
        312: Rule(
            "R_AARCH64_LD64_GOT_LO12_NC",
            4,
            Wants.GOT_SLOT,
            partial(_in_slot, partial(_low12, scale=3)),
        ),
    }
    for number, scale in ((278, 0), (284, 1), (285, 2), (286, 3), (299, 4)):
        name = f"R_AARCH64_LDST{8 << scale}_ABS_LO12_NC"
        rules[number] = Rule(name, 4, Wants.SYMBOL, partial(_low12, scale=scale))
    return rules


def _arm_stub(stub: int, slot: int) -> bytes:
    """adrp x16, slot; ldr x16, [x16, slot]; br x16. x16 is the scratch register of veneers."""
    code = bytearray(struct.pack("<III", 0x90000010, 0xF9400210, 0xD61F0200))
    for offset, apply in ((0, _adrp), (4, partial(_low12, scale=3))):
        apply(Site(code, offset, stub + offset, slot, 0, "call stub", "GOT slot", "stub"))
    return bytes(code)


MACHINES: Final[Mapping[int, Machine]] = {
    EM_X86_64: Machine("x86-64", _X86_RULES, 8, _x86_stub),
    EM_AARCH64: Machine("arm64", _arm_rules(), 12, _arm_stub),
}
"""The machines code can be loaded for, by ELF machine number."""
