"""The decoder and its text, against LLVM's disassembler where one is installed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from gpu.core.errors import Unsupported
from gpu.sim.isa.rdna.decode import Decoder, UnknownInstruction
from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.isa.rdna.formats import (
    DPP8,
    DPP8_FI,
    DPP8_FIELDS,
    DPP16,
    DPP16_FIELDS,
    EXEC,
    LITERAL,
    NULL,
    SDWA,
    SDWA_FIELDS,
    SDWAB_FIELDS,
    VGPR,
    Encoding,
    Format,
)
from gpu.sim.isa.rdna.table import Opcode, load_table
from gpu.sim.isa.rdna.text import text_of
from tools.isa_sweep.llvm import Assembler, Disassembler, find_llvm, llvm_version
from tools.isa_sweep.sweep import probe

CHIP = "gfx1100"
FORMS = 2400
# LLVM writes these symbolically, with names that only an assembler needs.
SYMBOLIC = re.compile(
    r"s_waitcnt_depctr|s_version|s_set_gpr_idx|ds_swizzle|setreg|getreg|sendmsg|s_atc_probe|s_endpgm\b|prefetch"
    r"|s_barrier_(init|join|signal)"
)
HALF_SCALARS = re.compile(r"s_\w*f16")
OLD_NAMES = re.compile("16|dot4|dot8")  # LLVM 19 prints their modifiers differently
CONSTANTS = (*range(240, 249), LITERAL)
COARSE = {"vop3sd": "vop3", "mai": "vop3p"}  # which are told apart by opcodes
SDWA_FORMS = ("vop1", "vop2", "vopc")
_PLACES = {"src0": 0, "src1": 1, "src2": 2, "vdst": 3}


FAMILIES = ("gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201")
"""A chip for each decode table."""


@pytest.fixture(scope="module", params=FAMILIES)
def llvm(request: pytest.FixtureRequest, need: Callable[[str], None]) -> Disassembler:
    need("libllvm")
    path = find_llvm()
    assert path is not None
    if request.param == "gfx950" and not knows_halves():
        pytest.skip("LLVM before 20 does not know gfx950")
    return Disassembler(path, request.param)


def knows_halves() -> bool:
    """LLVM before 20 does not say which half of a register a 16-bit operand is."""
    path = find_llvm()
    return path is not None and int(llvm_version(path).split(".")[0]) >= 20


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("010506c9040b0200", "v_dual_add_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5"),
        ("0000b0bf", "s_endpgm"),
        ("020200f4000000f8", "s_load_b32 s8, s[4:5], 0x0"),
        ("f2040406", "v_add_f32 v2, 1.0, v2"),
        ("ff0082be78563412", "s_mov_b32 s2, 0x12345678"),
    ],
)
def test_known_encodings(code: str, text: str) -> None:
    found = Decoder(CHIP).decode(bytes.fromhex(code))
    assert found.size == len(code) // 2
    assert text_of(found) == text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("0080b5d304110214", "v_mfma_f32_16x16x32_bf16 a[0:3], v[4:7], a[8:11], a[0:3]"),
        ("0000b8d310290202", "v_mfma_i32_32x32x32_i8 v[0:15], v[16:19], v[20:23], 0"),
        (
            "0004add304190244",
            "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:7], v[12:17], v[0:3] cbsz:4 blgp:2",
        ),
        ("0000c3d304114204", "v_smfmac_f32_16x16x128_fp8_fp8 v[0:3], v[4:7], v[8:15], v16"),
        ("050234d201050ed0", "v_bitop3_b32 v5, v1, v2, s3 bitop3:0x96"),
        ("054933d201050e24", "v_bitop3_b16 v5, v1, v2, v3 bitop3:9 op_sel:[1,0,0,1]"),
        ("00189ad101010000", "v_permlane32_swap_b32 v0, v1 bound_ctrl:1 fi:1"),
        ("01204cd202070200", "v_cvt_scalef32_pk_fp4_f16 v1, v2, v3 op_sel:[0,0,1,0]"),
        ("010268d202070040", "v_cvt_pk_bf16_f32 v1, v2, -|s3|"),
        ("4000c6d901000002", "ds_read_b64_tr_b16 v[2:3], v1 offset:64"),
        ("1080f4dd01000200", "global_load_lds_dwordx4 v1, s[2:3] offset:16"),
        ("02b1027e", "v_prng_b32 v1, v2"),
    ],
)
def test_what_gfx950_adds_reads_as_llvm_22_reads_it(code: str, text: str) -> None:
    found = Decoder("gfx950").decode(bytes.fromhex(code))
    assert (found.size, text_of(found)) == (len(code) // 2, text)


def test_unknown_bytes_are_a_typed_error_with_the_bytes() -> None:
    code = bytes.fromhex("000080bf ffffffff ffffffff")
    with pytest.raises(UnknownInstruction, match="ffffffff") as caught:
        Decoder(CHIP, lambda data: "something").decode(code, 4)
    assert caught.value.code == code[4:]
    assert "something" in caught.value.message


@pytest.mark.parametrize("size", [0, 2, 4])
def test_code_that_ends_early(size: int) -> None:
    literal = bytes.fromhex("ff0082be78563412")
    with pytest.raises(UnknownInstruction):
        Decoder(CHIP).decode(literal[:size])


def test_a_chip_without_a_table() -> None:
    with pytest.raises(Unsupported, match="gfx9000"):
        Decoder("gfx9000")


def test_the_table_says_what_llvm_says(llvm: Disassembler) -> None:
    rng = random.Random(3)
    encoding = ENCODINGS[llvm.chip]
    entries = [o for o in load_table(llvm.chip).values() if not o.format.startswith("vopd")]
    for opcode in rng.sample(entries, 150):
        if not knows_halves() and (_has_halves(opcode) or OLD_NAMES.search(opcode.name)):
            continue
        form = encoding.by_name[COARSE.get(opcode.format, opcode.format)]
        found = probe(llvm, encoding, form, opcode.number)
        if found is None and not knows_halves():
            continue  # LLVM 19 lacks some of RDNA4's
        assert found is not None, opcode.name
        assert found.name == opcode.mnemonic
        assert len(found.operands) == len(opcode.operands), opcode.name
        for text, spec in zip(found.operands, opcode.operands, strict=True):
            assert text.split("@")[0].split(":")[0] == spec.field


def _has_halves(opcode: Opcode) -> bool:
    return any(spec.half for spec in opcode.operands)


def test_random_instructions_read_as_llvm_reads_them(llvm: Disassembler) -> None:
    decoder = Decoder(llvm.chip)
    compared = 0
    for name, code in _random_codes(random.Random(12), llvm.chip):
        theirs = llvm(code)
        if theirs is None or not _is_plain(theirs):
            continue
        ours = decoder.decode(code)
        assert (ours.size, text_of(ours)) == (theirs[0], _plain(theirs[1])), (name, code.hex())
        compared += 1
        if compared == FORMS:
            return
    raise AssertionError(f"only {compared} forms were compared")


def test_llvm_assembles_our_text_to_what_it_was(llvm: Disassembler) -> None:
    """The other way; LLVM may choose another encoding, which then reads the same.

    It takes some numbers with modifiers as literals, and knows which fields do not go together.
    """
    path = find_llvm()
    assert path is not None
    decoder = Decoder(llvm.chip)
    codes = _random_codes(random.Random(13), llvm.chip)
    found = (code for _, code in codes if _is_plain(llvm(code)))
    decoded = [decoder.decode(code) for code in islice(found, FORMS)]
    texts = [text_of(each) for each in decoded]
    assembled = Assembler(path, llvm.chip)(texts)
    agree = [
        (each.opcode.format, each.name)
        for each, text, code in zip(decoded, texts, assembled, strict=True)
        if code is not None and text_of(decoder.decode(code)) == text
    ]
    # On CDNA one scalar operand alone may be read, which random ones rarely keep to.
    assert len(agree) > (2000 if ENCODINGS[llvm.chip].has_long_literals else 1600)
    assert len(set(agree)) > 600
    taken = sum(code is not None for code in assembled)
    assert taken - len(agree) < FORMS // 100


def _is_plain(theirs: tuple[int, str] | None) -> bool:
    """Whether LLVM knows the instruction, and has nothing to say against its fields."""
    return theirs is not None and "aligned" not in theirs[1] and "/*" not in theirs[1]


def _plain(text: str) -> str:
    """LLVM's text without encoding suffixes, and with our spelling of constants."""
    text = re.sub(r"_(e32|e64|dpp|e64_dpp)\b", "", text).replace("STORE_RT_WB", "STORE_WB")
    if re.search(r"[vs]\d+\.[lh]", text):  # says it a second time
        text = re.sub(r" op_sel:\S+", "", text)
    if "src0_sel:" in text:
        return text.replace("_sdwa", "")
    text = re.sub(r"sext\(([^)]*)\)", r"\1", re.sub(r"neg\(([^)]*)\)", r"-\1", text))
    return re.sub(r"0\.15915494309189\d+|\b0x3118\b", "0.15915494", text)


def _random_codes(rng: random.Random, chip: str) -> Iterator[tuple[str, bytes]]:
    table, encoding = load_table(chip), ENCODINGS[chip]
    forms = encoding.by_name
    second = [number for form, number in table if form == "vopdy"]
    while True:
        for (name, number), opcode in table.items():
            skipped = name in ("vopdy", "mubuf") or SYMBOLIC.search(opcode.name)
            if skipped or (
                not knows_halves() and (_has_halves(opcode) or OLD_NAMES.search(opcode.name))
            ):
                continue
            form = forms["vopd" if name == "vopdx" else name]
            fields = _random_fields(rng, form, opcode, encoding)
            if name == "vopdx":
                fields |= {"opx": number, "opy": rng.choice(second)}
            else:
                fields["op"] = number
            tail = rng.randbytes(4)
            if form.name in ("vop1", "vop2", "vopc", "vop3") and rng.random() < 0.1:
                tail = _random_dpp(rng, opcode, fields, encoding.has_dpp8)
            if encoding.has_sdwa and form.name in SDWA_FORMS and rng.random() < 0.2:
                tail = _random_sdwa(rng, opcode, fields)
            yield opcode.name, form.join(fields).to_bytes(form.size, "little") + tail + bytes(8)


def _random_dpp(
    rng: random.Random, opcode: Opcode, fields: dict[str, int], has_dpp8: bool
) -> bytes:
    first = next((spec for spec in opcode.operands if spec.field == "src0"), None)
    if first is None or first.scalar or first.dwords > 2:  # LLVM ends at some of the wide ones
        return bytes(4)
    fields["src0"] = rng.choice((DPP16, DPP8, DPP8_FI)) if has_dpp8 else DPP16
    for name in ("src1", "src2"):  # a literal does not go with DPP
        if fields.get(name) == LITERAL:
            fields[name] = 128
    if fields["src0"] != DPP16:
        lanes = {"vsrc0": rng.randrange(128), "lanes": rng.randrange(1 << 24)}
        return DPP8_FIELDS.join(lanes).to_bytes(4, "little")
    controls = (rng.randrange(256), 0x101, 0x11F, 0x128, 0x140, 0x141)
    controls += (0x150, 0x163) if has_dpp8 else (0x130, 0x134, 0x138, 0x13C, 0x142, 0x143)
    extra = {
        "vsrc0": rng.randrange(128),
        "ctrl": rng.choice(controls),
        "row": rng.randrange(16),
        "bank": rng.randrange(16),
        "bc": rng.randrange(2),
        "fi": rng.randrange(2),
        "neg0": rng.randrange(2) if "neg" in opcode.modifiers else 0,
        "abs1": rng.randrange(2),
    }
    return DPP16_FIELDS.join(extra).to_bytes(4, "little")


def _random_sdwa(rng: random.Random, opcode: Opcode, fields: dict[str, int]) -> bytes:
    specs = {spec.field: spec for spec in opcode.operands}
    if (
        opcode.name.startswith("v_pk")
        or "src0" not in specs
        or specs["src0"].dwords == 2
        or "imm" in specs
    ):
        return rng.randbytes(4)
    fields["src0"] = SDWA
    extra = {name: rng.randrange(2) for name in ("scalar0", "sext1")}
    if "neg" in opcode.modifiers:
        extra |= {"neg0": rng.randrange(2), "abs1": rng.randrange(2)}
    extra |= {"vsrc0": rng.randrange(0, 100, 2), "sel0": rng.randrange(7), "sel1": rng.randrange(7)}
    if opcode.format == "vopc":
        extra |= {"named": rng.randrange(2), "sdst": rng.randrange(0, 100, 2)}
        return SDWAB_FIELDS.join(extra).to_bytes(4, "little")
    extra |= {"dst": rng.randrange(7), "unused": rng.randrange(3), "omod": rng.randrange(4)}
    extra["clamp"] = rng.randrange(2) if "clamp" in opcode.modifiers else 0
    return SDWA_FIELDS.join(extra).to_bytes(4, "little")


def _random_fields(
    rng: random.Random, form: Format, opcode: Opcode, encoding: Encoding
) -> dict[str, int]:
    specs = {spec.field: spec for spec in opcode.operands}
    halves = _has_halves(opcode)
    fields = {}
    for name, (high, low) in form.fields.items():
        width = high - low + 1
        spec = specs.get(name)
        value = rng.randrange(1 << width)
        if name in ("op", "opx", "opy", "seg", "gds", "lds", "tfe"):
            continue
        if name.startswith(("src", "ssrc")):
            value = _random_source(rng, width) if spec or name[-1] in "xy" else 0
            if spec and (spec.scalar or spec.dwords > 2):
                value = rng.randrange(0, 96, 4) + (0 if spec.scalar else VGPR)
            if HALF_SCALARS.fullmatch(opcode.name):  # LLVM writes constants as bits
                value = rng.randrange(0, 104, 2)
            if value == LITERAL and "fma_mix" in opcode.name:
                value = 129  # LLVM writes half of it
            if value == LITERAL and form.size == 8 and not encoding.has_long_literals:
                value = 129
            if encoding.has_sdwa and "16" in opcode.name and value in CONSTANTS:
                value = 129  # LLVM writes constants as bits, of literals half
            if form.name == "mai" or "accvgpr" in opcode.name:  # LLVM calls v125 null here
                value = VGPR + rng.randrange(0, 120, 2)
            if halves:  # LLVM has two spellings where a half is no vector register
                value = VGPR + rng.randrange(128)
        elif name in ("sdst", "sdata"):
            value = rng.randrange(0, 64, 16) if spec else 0
        elif name in ("saddr", "soffset"):
            value = rng.choice((encoding.without.get(name, 0), rng.randrange(0, 100, 2)))
        elif name == "sbase":
            value = rng.randrange(0, 50, 2)
        elif name in ("neg", "abs", "omod", "clamp", "glc", "dlc", "slc", "opsel", "neg_hi"):
            value *= rng.randrange(2)
        elif name == "simm16" and "imm" not in specs:
            value = 0
        elif name == "simm16" and opcode.name.startswith(("s_br", "s_cbr", "s_call", "s_sub")):
            value &= 0x7FFF  # LLVM writes distances without a sign
        elif name in ("vdst", "data", "data0", "data1", "addr") and not spec:
            value = 0
        elif name == "vdst" and spec and spec.scalar:
            value = rng.randrange(0, 96, 2)
        fields[name] = value
    if "imm" in form.fields:  # of two ways to have an offset one
        fields["imm"] = 1
    if form.name == "smem" and not {"sdata", "sbase"} <= specs.keys():  # nothing is loaded
        fields |= {name: 0 for name in ("glc", "dlc") if name in fields}
    if form.name == "vop3":  # with a bit for an operand that is not there, LLVM reads no halves
        usable = sum(1 << _PLACES[name] for name, spec in specs.items() if spec.half)
        fields["opsel"] &= usable if halves else 15
    if form.name == "vop3" and opcode.name.startswith("v_cmpx"):
        fields["vdst"] = EXEC
    return fields


def _random_source(rng: random.Random, width: int) -> int:
    """A register, an inline constant or a literal."""
    scalars = (rng.randrange(0, 102, 2), 106, NULL, 125, EXEC, rng.randrange(128, 209))
    found = rng.choice((*scalars, rng.randrange(240, 249), LITERAL))
    return VGPR + rng.randrange(256) if width == 9 and rng.random() < 0.5 else found
