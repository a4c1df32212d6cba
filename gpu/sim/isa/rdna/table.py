"""Reads the generated decode tables of a chip.

A group of the table is a line ``format operands; modifiers`` and indented lines of its opcodes,
``hex name``. An operand is ``field``, ``field:dwords`` or ``field:h`` (16 bits), with ``s`` before
the size where only a scalar may stand, ``@glc`` behind it where it is there with that bit alone;
``vcc``, ``imm``, ``literal``, ``offset01`` are words. Modifiers are ``neg=mask``, ``abs=mask``,
``neg_hi=mask`` (a bit per source), ``omod``, ``clamp``, ``opsel``, ``opsel_hi``, ``bitop3``,
``byte_sel``. A table that is added to another one may have groups ``lacks format``, of opcodes that
it takes away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

from gpu.core.errors import Unsupported
from gpu.sim.isa.rdna.names import Rename, as_it_is, of_cdna3, of_cdna4, of_rdna2, of_rdna4
from gpu.sim.isa.rdna.tables import (
    gfx942,
    gfx942_vector,
    gfx950,
    gfx1030,
    gfx1030_vector,
    gfx1100,
    gfx1100_vector,
    gfx1150,
    gfx1201,
    gfx1201_vector,
)

CACHE_CONTROLS: Final = frozenset(
    (
        *("buffer_gl0_inv", "buffer_gl1_inv", "buffer_inv", "buffer_wbl2"),
        *("global_inv", "global_wb", "global_wbinv"),
    )
)
"""Memory instructions that only invalidate caches, or write them back."""
_CDNA3: Final = (gfx942.TABLE, gfx942_vector.TABLE)
_CDNA4: Final = (*_CDNA3, gfx950.TABLE)
_RDNA2: Final = (gfx1030.TABLE, gfx1030_vector.TABLE)
_RDNA3: Final = (gfx1100.TABLE, gfx1100_vector.TABLE)
_RDNA35: Final = (*_RDNA3, gfx1150.TABLE)
_RDNA4: Final = (gfx1201.TABLE, gfx1201_vector.TABLE)
_TABLES: Final[Mapping[str, tuple[tuple[str, ...], Rename]]] = {
    "gfx942": (_CDNA3, of_cdna3),
    "gfx950": (_CDNA4, of_cdna4),
    **dict.fromkeys((f"gfx103{number}" for number in range(7)), (_RDNA2, of_rdna2)),
    **dict.fromkeys(("gfx1100", "gfx1101", "gfx1102", "gfx1103"), (_RDNA3, as_it_is)),
    **dict.fromkeys(("gfx1150", "gfx1151", "gfx1152", "gfx1153"), (_RDNA35, as_it_is)),
    **dict.fromkeys(("gfx1200", "gfx1201"), (_RDNA4, of_rdna4)),
}
"""By chip: its tables, and what the names in them are here."""


class OperandSpec(NamedTuple):
    """An operand in the order of the text.

    Attributes:
        field: the field that names the register, or a word (see the module).
        dwords: registers it takes.
        half: it is 16 bits, half a register.
        scalar: only a scalar register may stand here.
        with_glc: it is there only where the field `glc`, or the lowest bit of `th`, is set.
    """

    field: str
    dwords: int = 1
    half: bool = False
    scalar: bool = False
    with_glc: bool = False


class Opcode(NamedTuple):
    """What the table says of one opcode.

    Attributes:
        format, number: where it is.
        name: of what it does, see gpu/sim/isa/rdna/names.py.
        mnemonic: as the chip's assembler spells it.
        operands: in the order of the text.
        modifiers: names -> masks of sources, or 1.
    """

    format: str
    number: int
    name: str
    mnemonic: str
    operands: tuple[OperandSpec, ...]
    modifiers: Mapping[str, int]


@cache
def load_table(chip: str) -> Mapping[tuple[str, int], Opcode]:
    """(format, opcode) -> what it is. Raises Unsupported for a chip without a table."""
    if chip not in _TABLES:
        raise Unsupported(f"no decode table for {chip!r}; there are {', '.join(_TABLES)}")
    texts, rename = _TABLES[chip]
    every = [opcode for text in texts for opcode in _parse(text, rename)]
    lost = {(o.operands[0].field, o.number) for o in every if o.format == "lacks"}
    found = [o for o in every if o.format != "lacks" and (o.format, o.number) not in lost]
    signs = {opcode.name: opcode.modifiers for opcode in found if opcode.format == "vop3"}
    return {(o.format, o.number): _with_dpp_signs(o, signs) for o in found}


def _with_dpp_signs(opcode: Opcode, signs: Mapping[str, Mapping[str, int]]) -> Opcode:
    """Short encodings have modifiers by DPP and SDWA alone: those that their long forms have."""
    if opcode.format not in ("vop1", "vop2", "vopc"):
        return opcode
    known = signs.get(opcode.name, {})
    masks = {name: mask for name, mask in known.items() if not name.startswith("opsel")}
    return opcode._replace(modifiers=masks)


def _parse(text: str, rename: Rename) -> Iterator[Opcode]:
    form = ""
    operands: tuple[OperandSpec, ...] = ()
    modifiers: dict[str, int] = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            head, _, tail = line.partition(";")
            form, *specs = head.split()
            operands = tuple(_operand(spec) for spec in specs)
            pairs = (item.partition("=") for item in tail.split())
            modifiers = {name: int(mask or 1) for name, _, mask in pairs}
            continue
        for member in line.strip().rstrip(",").split(", "):
            number, name = member.split()
            yield Opcode(form, int(number, 16), rename(name), name, operands, modifiers)


def _operand(spec: str) -> OperandSpec:
    spec, _, condition = spec.partition("@")
    field, _, size = spec.partition(":")
    scalar = size.startswith("s")
    size = size.removeprefix("s")
    dwords = int(size) if size.isdigit() else 1
    return OperandSpec(field, dwords, size == "h", scalar, condition == "glc")
