"""From disassembled text to the operands and modifiers of each opcode."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.isa.rdna.formats import EXEC, VGPR, Encoding, Format
from tools.isa_sweep.llvm import Disassembler

# Register numbers by which an operand is recognised. All are multiples of 16, so that they are
# aligned for a scalar operand of any size.
_PROBES: Final[dict[str, int]] = {
    "ssrc0": 32,
    "ssrc1": 48,
    "sdst": 16,
    "simm16": 0x1234,
    "sbase": 16,
    "sdata": 16,
    "vdst": 16,
    "soffset": 0,
    "saddr": 0,
    "src0": VGPR + 32,
    "src1": VGPR + 48,
    "src2": VGPR + 64,
    "vsrc1": 48,
    "addr": 32,
    "data": 48,
    "data0": 48,
    "data1": 64,
    "offset0": 1,
    "offset1": 2,
    "vaddr": 32,
    "vdata": 16,
    "srsrc": 12,
    "offen": 1,
    "src0x": VGPR + 32,
    "vsrc1x": 48,
    "vdstx": 16,
    "src0y": VGPR + 33,
    "vsrc1y": 49,
    "vdsty": 8,
}
_SPECIAL: Final[dict[tuple[str, str], int]] = {
    ("vop3sd", "sdst"): 20,
    ("smem", "offset"): 0x24,
    ("mubuf", "soffset"): 128,
}
# Fields that some opcodes do not use and want to be zero, and sources that must be scalar.
_DROPPABLE: Final = (
    *("vdst", "data0", "data1", "addr", "src2", "src1", "ssrc0", "sdst", "sdata", "simm16"),
    *("vdata", "vaddr", "srsrc", "offen"),
)
_SOURCES: Final = ("src0", "src1", "src2")
_MUL: Final = 3  # v_dual_mul_f32
_REGISTER: Final = re.compile(r"([vsa])(?:(\d+)(\.[lh])?|\[(\d+):(\d+)\])")
_REFUSED: Final = "v_interp"  # of no use to kernels, among VOP3 before RDNA3
_SUFFIX: Final = re.compile(r"_(e32|e64|dpp|sdwa)$")


@dataclass(frozen=True, order=True)
class Entry:
    """What is known of one opcode.

    Attributes:
        format: the name of its format; `vopd` has two lists of opcodes, ``vopdx`` and ``vopdy``.
        opcode: the number.
        name: the mnemonic, without LLVM's suffixes for encodings.
        operands: in the order of the text: ``field``, ``field:dwords``, ``field:h`` for 16 bits
            (with ``s`` before the size where it must be scalar), or a word such as ``vcc``.
        modifiers: ``neg=mask``, ``abs=mask`` (bits by source), ``omod``, ``clamp``, ``opsel``.
    """

    format: str
    opcode: int
    name: str
    operands: tuple[str, ...]
    modifiers: tuple[str, ...]


def sweep(disassembler: Disassembler) -> Iterator[Entry]:
    """Every opcode that the chip has, format by format."""
    encoding = ENCODINGS[disassembler.chip]
    for form in encoding.formats:
        if form.name in encoding.refused:
            continue
        if not form.opcode:
            yield from _sweep_dual(disassembler, form)
            continue
        high, low = form.fields["op"]
        for opcode in range(1 << (high - low + 1)):
            entry = probe(disassembler, encoding, form, opcode)
            if entry is not None:
                yield entry


def probe(
    disassembler: Disassembler, encoding: Encoding, form: Format, opcode: int
) -> Entry | None:
    """What LLVM knows of one opcode; None where there is none."""
    if encoding.format_of(form.join({"op": opcode}) & 0xFFFFFFFF) is not form:
        return None
    form = encoding.refined(form, opcode)
    for fields in _candidates(encoding, form, opcode):
        text = _text(disassembler, form, {**fields, "op": opcode})
        if text is not None and (any(fields.values()) or " " not in text):
            name, _, rest = text.partition(" ")
            if name.startswith(_REFUSED):
                return None
            operands = _operands(form, fields, rest)
            if form.name in ("flat", "global", "ds", "mubuf", "scratch"):
                operands = _returned(disassembler, form, opcode, fields, operands)
            found = _modifiers(disassembler, form, {**fields, "op": opcode})
            return Entry(form.name, opcode, _SUFFIX.sub("", name), operands, found)
    return None


def _text(disassembler: Disassembler, form: Format, fields: Mapping[str, int]) -> str | None:
    found = disassembler(form.join(fields).to_bytes(form.size, "little") + bytes(16))
    return found[1] if found else None


def _candidates(encoding: Encoding, form: Format, opcode: int) -> Iterator[dict[str, int]]:
    """Fields to try, those with the fewest zeroed or scalar ones first."""
    fields = {name: _PROBES[name] for name in form.fields if name in _PROBES}
    fields |= {name: value for (f, name), value in _SPECIAL.items() if f == form.name}
    fields |= {name: code for name, code in encoding.without.items() if name in form.fields}
    if form.name == "scratch" and "sve" in form.fields:
        fields["sve"] = 1
    if form.name == "vop3" and opcode < 0x100 and opcode & encoding.cmpx_bit:
        fields["vdst"] = EXEC
    droppable: list[str] = [name for name in _DROPPABLE if name in fields]
    if form.name == "mubuf":
        droppable.append("soffset")
    for count in range(len(droppable) + 1):
        for dropped in combinations(droppable, count):
            zeroed = fields | dict.fromkeys(dropped, 0)
            sources = [name for name in _SOURCES if zeroed.get(name, 0) >= VGPR]
            for scalars in range(len(sources) + 1):
                for chosen in combinations(sources, scalars):
                    found = {**zeroed, **{name: zeroed[name] - VGPR for name in chosen}}
                    yield found
                    if form.name == "vop3p":  # some take no halves but the usual ones
                        yield {**found, "opsel_hi": 3, "opsel_hi2": 1}
    if form.name == "smem":  # clocks and controls of caches, which have no address
        yield {**dict.fromkeys(fields, 0), "sdata": fields["sdata"]}
        yield dict.fromkeys(fields, 0)


def _operands(form: Format, fields: Mapping[str, int], text: str) -> tuple[str, ...]:
    by_number = {value & 0xFF: name for name, value in reversed(list(fields.items())) if value}
    if form.name == "smem":
        by_number = {32: "sbase", 16: "sdata"}
    elif form.name == "mubuf":
        by_number = {32: "vaddr", 16: "vdata", 48: "srsrc"}
    elif form.name == "vop3sd":
        by_number = {16: "vdst", 20: "sdst", 32: "src0", 48: "src1", 64: "src2"}
    found = []
    for item in re.split(r", | (?=offset)", text):
        if form.name == "mubuf" and item.startswith("0"):  # instead of a scalar offset
            continue
        match = _REGISTER.fullmatch(item.split(" ")[0])
        if match is None:
            found.append(_word(item.split(" ")[0]))
            continue
        bank, single, half, first, last = match.groups()
        field = by_number[int(single or first)]
        size = "h" if half else str(int(last) - int(first) + 1) if first else ""
        scalar_source = field in _SOURCES and fields[field] < VGPR
        scalar = "s" if bank == "s" and (field == "vdst" or scalar_source) else ""
        found.append(f"{field}:{scalar}{size}" if scalar + size else field)
    return tuple(item for item in found if item)


def _word(item: str) -> str:
    """A word of the text that is no register."""
    if item in ("off", "null", "") or item.startswith("offset:"):
        return ""
    if item.startswith(("offset0", "offset1")):
        return "offset01" if item.startswith("offset0") else ""
    if item in ("vcc_lo", "vcc"):
        return "vcc" if item == "vcc_lo" else "vcc:2"
    if item in ("m0", "exec_lo"):
        return item
    return "imm"


def _returned(
    disassembler: Disassembler,
    form: Format,
    opcode: int,
    fields: Mapping[str, int],
    operands: tuple[str, ...],
) -> tuple[str, ...]:
    """Operands of a memory access, with the result that only a returning atomic has."""
    if form.name == "ds":
        return operands
    bit = next(name for name in ("glc", "sc0", "th") if name in form.fields)
    text = _text(disassembler, form, {**fields, "op": opcode, bit: 1})
    returning = _operands(form, fields, text.partition(" ")[2]) if text else operands
    if form.name != "mubuf" and returning != operands:
        return tuple(f"{item}@glc" if item.startswith("vdst") else item for item in returning)
    return operands


def _modifiers(
    disassembler: Disassembler, form: Format, fields: Mapping[str, int]
) -> tuple[str, ...]:
    if form.name not in ("vop3", "vop3sd", "vop3p"):
        return ()
    plain = _text(disassembler, form, fields)
    found = []
    if "neg" in form.fields and "bitop3" in (_text(disassembler, form, {**fields, "neg": 1}) or ""):
        fields = {**fields, "neg": 1, "abs": 0, "omod": 0}  # of which these are parts
        plain, found = _text(disassembler, form, fields), ["bitop3"]
    for name, width in (("neg", 3), ("abs", 3), ("neg_hi", 3)) if not found else ():
        if name in form.fields:
            mask = 0
            for bit in range(width):
                text = _text(disassembler, form, {**fields, name: 1 << bit})
                if text not in (None, plain):
                    mask |= 1 << bit
            found += [f"{name}={mask}"] if mask else []
    chosen = (("opsel", 1), ("opsel", 8), ("opsel", 4), ("opsel_hi", 1))
    for name, value in (("omod", 1), ("clamp", 1), *chosen):
        if name == "omod" and "bitop3" in found:
            continue
        if name in form.fields and value < 1 << (form.fields[name][0] - form.fields[name][1] + 1):
            text = _text(disassembler, form, {**fields, name: value})
            found += [name] if text not in (None, plain) and name not in found else []
            if "byte_sel" in (text or "") and "byte_sel" not in found:
                found.append("byte_sel")
    return tuple(found)


def _sweep_dual(disassembler: Disassembler, form: Format) -> Iterator[Entry]:
    """The opcodes of both halves of VOPD."""
    fields = {name: _PROBES[name] for name in form.fields if name in _PROBES}
    for half, name in (("x", "opx"), ("y", "opy")):
        high, low = form.fields[name]
        for opcode in range(1 << (high - low + 1)):
            text = _dual_text(disassembler, form, {**fields, name: opcode}, half)
            if text is None:
                continue
            part = text.split(" :: ")[0 if half == "x" else 1]
            mnemonic, _, rest = part.partition(" ")
            operands = tuple(_dual_operand(half, item) for item in rest.split(", "))
            yield Entry(f"vopd{half}", opcode, mnemonic, operands, ())


def _dual_text(
    disassembler: Disassembler, form: Format, fields: Mapping[str, int], half: str
) -> str | None:
    """The text of both halves, with a multiplication in the one that is not probed."""
    paired = {**fields, ("opx" if half == "y" else "opy"): _MUL}
    text = _text(disassembler, form, paired)
    return text or _text(disassembler, form, {**paired, f"vsrc1{half}": 0})


def _dual_operand(half: str, item: str) -> str:
    numbers = {"v16": "vdst", "v17": "vdst", "v32": "src0", "v33": "src0"}
    numbers |= {"v48": "vsrc1", "v49": "vsrc1", "vcc_lo": "vcc"}
    return numbers.get(item, "literal")
