"""Forms of instructions, each in a kernel of its own that anything with the chip's code can run.

A kernel loads registers from what it is given, runs the form once, and stores what it may have
changed: vector and scalar destinations, VCC, SCC, EXEC, and 32 bytes of memory of each lane, which
forms of memory work on. One wave of 32 lanes runs it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.sim.isa.rdna.formats import EXEC, M0, NULL, VCC_LO, VGPR
from gpu.sim.isa.rdna.table import CACHE_CONTROLS, Opcode, load_table
from tools.hw_acceptance.amd.vectors.encode import Assembler

Words = npt.NDArray[np.uint32]
LANES: Final = 32
SLOT: Final = 16 * LANES
"""Bytes that all lanes load or store at once, 16 each."""
SLOTS_GIVEN: Final = 8
SCALARS_GIVEN: Final = 16
GIVEN: Final = SLOTS_GIVEN * SLOT + 4 * SCALARS_GIVEN
SLOTS_STORED: Final = 6
MEMORY: Final = 4096
"""Where in the output each lane's own 32 bytes begin, behind what is stored."""
OUT: Final = MEMORY + 64 * LANES
LDS: Final = 4096
VGPRS: Final = 64

_A, _B, _C, _D = 10, 18, 26, 34  # vector registers: three sources of eight, and destinations
_SA, _SB, _SC, _SD = 16, 20, 24, 40  # scalar ones, of four
_NUMBERS: Final = {
    **dict(zip(("ssrc0", "ssrc1"), (_SA, _SB), strict=True)),
    **dict.fromkeys(("sdst", "sdata"), _SD),
    "vsrc1": _B,
    "data": _A,
    "data0": _A,
    "data1": _B,
    "addr": 8,
}
_SOURCES: Final = {"src0": (_A, _SA), "src1": (_B, _SB), "src2": (_C, _SC)}
_MASKED: Final = ("v_cndmask", "v_add_co_ci", "v_sub_co_ci", "v_subrev_co_ci")
"""Whose third source is a mask of lanes."""
_LITERAL: Final = 0x4049_0FDB  # pi
_SIMM16: Final = 0x9234
_RETURNS: Final = 1
_ALU: Final = (
    *("vop1", "vop2", "vopc", "vop3", "vop3sd", "vop3p"),
    *("sop1", "sop2", "sopc", "sopk"),
)
_MEMORY: Final = ("ds", "global", "flat")
# What leaves the kernel, or depends on other waves, on time, or on where code lies; GDS, and LDS
# beyond a lane's own bytes.
_LEFT_OUT: Final = (
    *("s_setpc", "s_swappc", "s_rfe", "s_getpc", "s_call", "s_cbranch", "s_subvector", "s_branch"),
    *("s_sendmsg", "s_setreg", "s_getreg", "s_sleep", "s_barrier", "s_alloc", "s_get_barrier"),
    *("s_wait", "s_version", "ds_gws", "ds_ordered", "ds_append", "ds_consume", "ds_nop"),
    *("ds_add_gs", "ds_sub_gs", "ds_bvh", "ds_param", "ds_direct", "global_load_tr"),
    *("global_load_lds", "global_load_addtid", "global_store_addtid"),
    *("ds_load_addtid", "ds_store_addtid", "global_atomic_ordered", "v_illegal"),
)


@dataclass(frozen=True)
class Form:
    """An instruction with chosen operands.

    Attributes:
        name: for people, unique within a chip.
        code: of the instruction.
        approximate: whether its results are not laid down to the last bit.
        kind: what its results are: ``f16``, ``bf16``, ``f32``, ``f64``, else empty.
        seed: what inputs are drawn from.
    """

    name: str
    code: bytes
    approximate: bool = False
    kind: str = ""
    seed: int = field(default=0, compare=False)


def forms(chip: str) -> Iterator[Form]:
    """All forms of a chip's table, by its formats. Raises Unsupported for a chip without one."""
    table, emit = load_table(chip), Assembler(chip)
    for opcode in table.values():
        if opcode.name.startswith(_LEFT_OUT) or opcode.name in CACHE_CONTROLS:
            continue
        if opcode.format in _ALU:
            for label, more in _modified(opcode):
                yield _form(opcode, f"{opcode.name} {opcode.format}{label}", emit, more)
        elif opcode.format in _MEMORY and not opcode.name.endswith("_addtid_b32"):
            yield from _of_memory(opcode, emit)
    yield from _duals(table, emit)


def left_out(chip: str) -> dict[str, int]:
    """How many opcodes of a chip's table have no form here, by format."""
    table = load_table(chip)
    counts: dict[str, int] = {}
    for opcode in table.values():
        known = opcode.format in (*_ALU, *_MEMORY, "vopdx", "vopdy")
        if not known or opcode.name.startswith(_LEFT_OUT) or opcode.name in CACHE_CONTROLS:
            counts[opcode.format] = counts.get(opcode.format, 0) + 1
    return counts


def inputs(form: Form) -> Words:
    """What a kernel is given: `GIVEN` bytes, of which the last are scalar registers."""
    draw = np.random.default_rng(form.seed)
    words = draw.integers(0, 1 << 32, GIVEN // 4, np.uint64).astype(np.uint32)
    for special in (_SINGLES, _HALVES, _SMALL):
        chosen = draw.random(len(words)) < 0.2
        words[chosen] = draw.choice(special, int(chosen.sum()))
    doubles = draw.random(len(words) // 2) < 0.1  # the upper words, which say what a double is
    words[1::2][doubles] = draw.choice(_DOUBLES, int(doubles.sum()))
    return words


def kernel(chip: str, form: Form) -> bytes:
    """The code of a whole kernel: s[0:1] is the address of two pointers, given and out."""
    emit = Assembler(chip)
    quiet = emit("s_wait_idle") + emit("s_nop", simm16=7)
    parts = [
        emit("s_load_b128", sdata=4, sbase=0, soffset=NULL),  # s[4:5] given, s[6:7] out
        quiet,
        emit("v_lshlrev_b32", vdst=1, src0=128 + 4, vsrc1=0),  # v1 = 16 * lane
        emit("v_lshlrev_b32", vdst=8, src0=128 + 5, vsrc1=0),  # v8 = 32 * lane
    ]
    for number in range(SLOTS_GIVEN):
        parts.append(_load(emit, _A + 4 * number, 1, 4, number * SLOT))
    for number, register in enumerate((_SA, _SB, _SC, _SD)):
        at = SLOTS_GIVEN * SLOT + 16 * number
        parts.append(emit("s_load_b128", sdata=register, sbase=2, offset=at, soffset=NULL))
    parts += [
        emit("s_add_u32", sdst=8, ssrc0=6, ssrc1=255, literal=MEMORY),  # s[8:9]: lanes' memory
        emit("s_addc_u32", sdst=9, ssrc0=7, ssrc1=128),
        quiet,
        emit("v_add_co_u32", "vop3sd", vdst=6, sdst=VCC_LO, src0=8, src1=VGPR + 8),
        emit("v_mov_b32", vdst=7, src0=9),
        emit(
            "v_add_co_ci_u32", "vop3sd", vdst=7, sdst=VCC_LO, src0=128, src1=VGPR + 7, src2=VCC_LO
        ),
    ]
    for number in range(2):  # memory and LDS hold what the sources do
        parts.append(_store(emit, _C + 4 * number, 8, 8, 16 * number))
        parts.append(emit("ds_store_b128", addr=8, data0=_C + 4 * number, offset0=16 * number))
    parts += [
        emit("s_mov_b32", sdst=VCC_LO, ssrc0=255, literal=0x9E37_79B9),
        emit("s_mov_b32", sdst=M0, ssrc0=128),
        emit("s_cmp_lg_u32", ssrc0=VCC_LO, ssrc1=128),  # SCC = 1
        quiet,
        form.code,
        emit("s_wait_idle"),
        emit("s_cselect_b32", sdst=45, ssrc0=129, ssrc1=128),  # what changes SCC comes later
        emit("s_mov_b32", sdst=44, ssrc0=EXEC),
        emit("s_mov_b32", sdst=EXEC, ssrc0=193),
        quiet,
    ]
    shown = (_SD, _SD + 1, _SD + 2, _SD + 3, VCC_LO, 45, 44, M0)
    parts += [emit("v_mov_b32", vdst=42 + at, src0=each) for at, each in enumerate(shown)]
    for number in range(2):
        parts.append(emit("ds_load_b128", vdst=50 + 4 * number, addr=8, offset0=16 * number))
    parts.append(quiet)
    for number in range(SLOTS_STORED):
        parts.append(_store(emit, _D + 4 * number, 1, 6, number * SLOT))
    parts += [quiet, emit("s_endpgm")]
    return b"".join(parts)


def _load(emit: Assembler, register: int, offset: int, base: int, at: int) -> bytes:
    return emit("global_load_b128", "global", vdst=register, addr=offset, saddr=base, offset=at)


def _store(emit: Assembler, register: int, offset: int, base: int, at: int) -> bytes:
    return emit("global_store_b128", "global", data=register, addr=offset, saddr=base, offset=at)


def _form(opcode: Opcode, name: str, emit: Assembler, more: Mapping[str, int]) -> Form:
    fields: dict[str, int] = {}
    literal = None
    for spec in opcode.operands:
        if spec.field == "vdst":
            fields["vdst"] = _SD if spec.scalar else _D
        elif spec.field in _SOURCES:
            vector, scalar = _SOURCES[spec.field]
            is_mask = spec.field == "src2" and opcode.name.startswith(_MASKED)
            fields[spec.field] = scalar if spec.scalar or is_mask else VGPR + vector
        elif spec.field in _NUMBERS:
            fields[spec.field] = _NUMBERS[spec.field]
        elif spec.field == "imm" and opcode.format == "sopk":
            fields["simm16"] = _SIMM16
        elif spec.field in ("imm", "literal"):
            literal = _LITERAL
    if opcode.format == "vop3p":
        fields |= {"opsel_hi": 3, "opsel_hi2": 1}
    code = emit.encode(opcode, {**fields, **more}, literal)
    return _named(name, code, opcode.name)


def _named(name: str, code: bytes, operation: str) -> Form:
    kind = next((k for k in ("bf16", "f16", "f32", "f64") if operation.endswith(k)), "")
    if operation.startswith(("v_cvt", "v_pk_cvt")):  # named by what it makes first
        kind = next((k for k in ("bf16", "f16", "f32", "f64") if f"cvt_{k}" in operation), "")
    approximate = operation.startswith(_APPROXIMATE)
    return Form(name, code, approximate, kind, zlib.crc32(name.encode()))


def _modified(opcode: Opcode) -> Iterator[tuple[str, dict[str, int]]]:
    """The plain form, and for long encodings others: signs, clamping, halves."""
    yield "", {}
    known = opcode.modifiers
    if not opcode.format.startswith("vop3"):
        return
    signs = {name: known[name] & mask for name, mask in (("neg", 5), ("abs", 6)) if name in known}
    if opcode.format in {"vop3sd", "vop3p"}:
        signs.pop("abs", None)
    if any(signs.values()):
        yield ", signs", signs
    if "clamp" in known:
        yield ", clamp", {"clamp": 1}
    if "opsel" in known and opcode.format == "vop3" and "fp8" not in opcode.name:
        halves = {"src0": 1, "src1": 2, "src2": 4, "vdst": 8}
        opsel = sum(halves.get(spec.field, 0) for spec in opcode.operands if spec.half)
        if opsel:
            yield ", upper halves", {"opsel": opsel}
    if "opsel" in known and opcode.format == "vop3p" and "opsel_hi" in known:
        yield ", halves swapped", {"opsel": 3, "opsel_hi": 0}


def _of_memory(opcode: Opcode, emit: Assembler) -> Iterator[Form]:
    """Each lane on its own bytes, with the result that was there before where there is one."""
    name = f"{opcode.name} {opcode.format}"
    if "stride64" in opcode.name:
        return
    wide = any(spec.field == "offset01" for spec in opcode.operands)
    more: dict[str, int] = {}
    if opcode.format == "ds":
        more = {"offset1": 1} if wide else {}
    else:
        more["addr"] = 6 if opcode.format == "flat" else 8
        more["saddr"] = NULL if opcode.format == "flat" else 8
        if "atomic" in opcode.name:
            returning = any(spec.with_glc or spec.field == "vdst" for spec in opcode.operands)
            bit = "th" if emit.chip.startswith("gfx12") else "glc"
            more |= {bit: _RETURNS} if returning else {}
        if opcode.format == "flat" and not emit.chip.startswith("gfx12"):
            more.pop("saddr")
    yield _form(opcode, name, emit, more)


def _duals(table: Mapping[tuple[str, int], Opcode], emit: Assembler) -> Iterator[Form]:
    """Each half of a VOPD beside a move."""
    numbers = {half: [o for o in table.values() if o.format == f"vopd{half}"] for half in "xy"}
    fields = {"src0x": VGPR + _A, "vsrc1x": _B, "vdstx": _D}
    # Sources of both halves lie in different banks, destinations are one even and one odd.
    fields |= {"src0y": VGPR + _A + 1, "vsrc1y": _B + 1, "vdsty": (_D + 3) // 2}
    moves = {half: next(o for o in numbers[half] if o.name == "v_dual_mov_b32") for half in "xy"}
    for half, other in (("x", "y"), ("y", "x")):
        for opcode in numbers[half]:
            x, y = (opcode, moves[other]) if half == "x" else (moves[other], opcode)
            needs = any(spec.field == "literal" for spec in opcode.operands)
            code = emit.dual(x.number, y.number, fields, _LITERAL if needs else None)
            yield _named(f"{opcode.name} {opcode.format}", code, opcode.name)


_APPROXIMATE: Final = (
    *(f"v_{name}_" for name in ("exp", "log", "rcp", "rsq", "sqrt", "sin", "cos")),
    "v_s_",  # the same of scalars
)
_SINGLES: Final = np.array(
    [0.0, -0.0, 1.0, -1.5, 3.25e5, 1e-40, -1e-45, np.inf, -np.inf, np.nan, 2.0**31, 0.5],
    np.float32,
).view(np.uint32)
_HALVES: Final = (
    np.array([0.0, -0.0, 1.0, -2.5, 6e-8, 65504.0, np.inf, -np.inf, np.nan, 0.5, 3.0, -1e-5])
    .astype(np.float16)
    .view(np.uint32)
)
_DOUBLES: Final = (
    np.array([0.0, -1.0, 1e300, 1e-310, np.inf, np.nan, 2.5]).view(np.uint32)[1::2].copy()
)
_SMALL: Final = np.array([0, 1, 2, 5, 16, 31, 32, 33, 0xFFFF_FFFF, 0x8000_0000], np.uint32)
