"""Bytes to instructions of a chip, by its encoding and its table of opcodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gpu.core.errors import FormatError
from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.isa.rdna.formats import (
    DPP8,
    DPP8_FI,
    DPP8_FIELDS,
    DPP16,
    DPP16_FIELDS,
    LITERAL,
    SDWA,
    SDWA_FIELDS,
    SDWAB_FIELDS,
    VGPR,
    Format,
)
from gpu.sim.isa.rdna.table import Opcode, OperandSpec, load_table

LONGEST: Final = 12
"""Bytes of the longest instruction: 8, and a literal or a DPP dword, which SDWA's is like."""
_SCALAR_FIELDS: Final = (
    *("src0", "src1", "src2", "ssrc0", "ssrc1"),
    *("sdst", "sdata", "saddr", "soffset"),
)
"""Where a scalar operand may be named."""
SIZES_OF_FORMATS: Final = {2: 6, 3: 6, 4: 4}
"""Registers of a source of CDNA4's products of 8, 6 and 4 bits, by CBSZ and BLGP, which say its
format: FP8 and BF8 of 8 registers, FP6, BF6, FP4 (LLVM's disassembler)."""
_SOURCE_FIELDS: Final = ("src0", "src1", "src2", "ssrc0", "ssrc1", "src0x", "src0y")


class UnknownInstruction(FormatError):
    """Bytes that are no instruction of the chip.

    Attributes:
        code: the bytes, up to `LONGEST` of them.
    """

    def __init__(self, message: str, code: bytes):
        super().__init__(message)
        self.code = code


class Instruction(NamedTuple):
    """A decoded instruction.

    Attributes:
        opcode: what the table says of it.
        fields: the fields of its format; with DPP, `src0` is the true source 0. What generations
            encode each in a way of its own is as on RDNA3.
        size: bytes, with its literal or DPP dword.
        code: those bytes.
        literal: the 32-bit constant behind it, or None.
        dpp: the fields of its DPP dword, or None.
        dual: the second half of a VOPD, or None.
        sdwa: the fields of its SDWA dword, or None; with one, `vsrc1` of a scalar source is its
            code less that of the first vector register.
    """

    opcode: Opcode
    fields: Mapping[str, int]
    size: int
    code: bytes
    literal: int | None = None
    dpp: Mapping[str, int] | None = None
    dual: Opcode | None = None
    sdwa: Mapping[str, int] | None = None

    @property
    def name(self) -> str:
        """What it does; of a VOPD its first half."""
        return self.opcode.name

    @property
    def operands(self) -> tuple[OperandSpec, ...]:
        """Those that are there with the bits it has, in the order of the text."""
        fields = self.fields
        returns = fields.get("glc", 0) or fields.get("sc0", 0) or fields.get("th", 0) & 1
        found = tuple(spec for spec in self.opcode.operands if returns or not spec.with_glc)
        if "f8f6f4" not in self.opcode.name:
            return found
        sizes = {"src0": SIZES_OF_FORMATS.get(fields["cbsz"], 8)}
        sizes["src1"] = SIZES_OF_FORMATS.get(fields["blgp"], 8)
        return tuple(spec._replace(dwords=sizes.get(spec.field, spec.dwords)) for spec in found)


class Decoder:
    """Decodes for one chip.

    `disassemble`, where there is one, gives another's text for bytes that are not understood.
    """

    def __init__(self, chip: str, disassemble: Callable[[bytes], str | None] | None = None):
        """Raises Unsupported for a chip without a table."""
        self.chip = chip
        self._table = load_table(chip)
        self._encoding = ENCODINGS[chip]
        self._disassemble = disassemble

    def decode(self, code: bytes, offset: int = 0) -> Instruction:
        """The instruction at `offset`. Raises UnknownInstruction, also where `code` ends early."""
        window = code[offset : offset + LONGEST]
        first = int.from_bytes(window[:4], "little")
        form = self._encoding.format_of(first) if len(window) >= 4 else None
        if form is None or len(window) < form.size:
            raise self._unknown(window, offset, "no format matches")
        word = int.from_bytes(window[: form.size], "little")
        if form.name in self._encoding.refused:
            purpose = self._encoding.refused[form.name]
            raise self._unknown(window, offset, f"{form.name} is for {purpose}")
        fields = form.split(word)
        refined = self._encoding.refined(form, fields.get("op", 0))
        if refined is not form:
            form, fields = refined, refined.split(word)
        if form.name == "vopd":
            return self._decode_dual(window, offset, fields)
        opcode = self._table.get((form.name, fields["op"]))
        if opcode is None:
            raise self._unknown(window, offset, f"{form.name} has no opcode {fields['op']:#x}")
        self._encoding.adapt(opcode.name, fields)
        return self._finish(window, offset, opcode, fields, form)

    def _finish(
        self, window: bytes, offset: int, opcode: Opcode, fields: dict[str, int], form: Format
    ) -> Instruction:
        """Reads what follows the instruction proper: a literal or a DPP dword."""
        size = form.size
        source = fields.get("src0")
        literal = dpp = sdwa = None
        ways = (DPP16, DPP8, DPP8_FI) if self._encoding.has_dpp8 else (DPP16,)
        if form.name.startswith("vop") and source is not None and source in ways:
            extra = self._extra(window, offset, size)
            dpp = (DPP16_FIELDS if source == DPP16 else DPP8_FIELDS).split(extra)
            dpp["kind"] = source
            if not self._encoding.has_dpp8:
                dpp["fi"] = 0
            fields = {**fields, "src0": dpp["vsrc0"] + VGPR}
            size += 4
        elif self._encoding.has_sdwa and source == SDWA and form.name in ("vop1", "vop2", "vopc"):
            extra = self._extra(window, offset, size)
            sdwa = (SDWAB_FIELDS if form.name == "vopc" else SDWA_FIELDS).split(extra)
            fields |= {key: sdwa[key] for key in ("clamp", "omod", "sdst") if key in sdwa}
            fields["src0"] = sdwa["vsrc0"] + (0 if sdwa["scalar0"] else VGPR)
            if sdwa["scalar1"] and "vsrc1" in fields:
                fields["vsrc1"] = self._encoding.codes.get(fields["vsrc1"], fields["vsrc1"]) - VGPR
            size += 4
        elif _wants_literal(opcode, fields):
            if size > 4 and not self._encoding.has_long_literals:
                raise self._unknown(window, offset, f"no literal may follow {form.name}")
            literal = self._extra(window, offset, size)
            size += 4
        scalars: list[str] = [name for name in _SCALAR_FIELDS if name in fields]
        scalars += [spec.field for spec in opcode.operands if spec.scalar and spec.field == "vdst"]
        for name in scalars if self._encoding.codes else ():
            fields[name] = self._encoding.codes.get(fields[name], fields[name])
        return Instruction(opcode, fields, size, window[:size], literal, dpp, sdwa=sdwa)

    def _decode_dual(self, window: bytes, offset: int, fields: dict[str, int]) -> Instruction:
        first = self._table.get(("vopdx", fields["opx"]))
        second = self._table.get(("vopdy", fields["opy"]))
        if first is None or second is None:
            raise self._unknown(window, offset, f"no VOPD {fields['opx']:#x}, {fields['opy']:#x}")
        size = self._encoding.by_name["vopd"].size
        literal = None
        if _wants_literal(first, fields) or _wants_literal(second, fields):
            literal = self._extra(window, offset, size)
            size += 4
        return Instruction(first, fields, size, window[:size], literal, dual=second)

    def _extra(self, window: bytes, offset: int, size: int) -> int:
        if len(window) < size + 4:
            raise self._unknown(window, offset, "the code ends before its literal or DPP dword")
        return int.from_bytes(window[size : size + 4], "little")

    def _unknown(self, window: bytes, offset: int, reason: str) -> UnknownInstruction:
        other = self._disassemble(window) if self._disassemble else None
        hint = f"; LLVM reads {other!r}" if other else ""
        return UnknownInstruction(
            f"no {self.chip} instruction at offset {offset:#x}: {window.hex(' ', 4)} ({reason})"
            f"{hint}",
            window,
        )


def _wants_literal(opcode: Opcode, fields: Mapping[str, int]) -> bool:
    """Whether a 32-bit constant follows: a source says so, or the opcode always has one."""
    if any(fields.get(name) == LITERAL for name in _SOURCE_FIELDS):
        return True
    words = [spec.field for spec in opcode.operands]
    if "literal" in words or opcode.name == "s_setreg_imm32_b32":
        return True
    return opcode.format in ("vop2", "sop2") and "imm" in words
