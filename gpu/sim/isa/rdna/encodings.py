"""The instruction formats of each generation of RDNA, of CDNA3 and CDNA4.

From AMD's "RDNA3 Instruction Set Architecture", chapter 15 ("Microcode Formats"), and the same
chapter of the others'; those of RDNA3.5 are RDNA3's. Formats of images, exports and interpolated
parameters are known and not decoded: compute kernels have none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpu.sim.isa.rdna.formats import ACCUMULATOR, M0, NULL, VGPR, Encoding, Format, make_format

_SCALAR: Final = (
    make_format("sop1", 4, "101111101", "ssrc0=7:0 op=15:8 sdst=22:16"),
    make_format("sopc", 4, "101111110", "ssrc0=7:0 ssrc1=15:8 op=22:16"),
    make_format("sopp", 4, "101111111", "simm16=15:0 op=22:16"),
    make_format("sopk", 4, "1011", "simm16=15:0 sdst=22:16 op=27:23"),
    make_format("sop2", 4, "10", "ssrc0=7:0 ssrc1=15:8 sdst=22:16 op=29:23"),
)
_VOP3: Final = "vdst=7:0 op=25:16 src0=40:32 src1=49:41 src2=58:50 omod=60:59 neg=63:61 clamp=15"
_VOP3P: Final = (
    "vdst=7:0 neg_hi=10:8 opsel=13:11 opsel_hi2=14 clamp=15 op=22:16 src0=40:32 src1=49:41"
    " src2=58:50 opsel_hi=60:59 neg=63:61"
)
_VECTOR: Final = (
    make_format("vop1", 4, "0111111", "src0=8:0 op=16:9 vdst=24:17"),
    make_format("vopc", 4, "0111110", "src0=8:0 vsrc1=16:9 op=24:17"),
    make_format("vop2", 4, "0", "src0=8:0 vsrc1=16:9 vdst=24:17 op=30:25"),
    make_format("vop3p", 8, "110011000", _VOP3P),
)
_LONG: Final = make_format("vop3", 8, "110101", f"{_VOP3} abs=10:8 opsel=14:11")
_VOPD: Final = make_format(
    *("vopd", 8, "110010"),
    "src0x=8:0 vsrc1x=16:9 opy=21:17 opx=25:22 src0y=40:32 vsrc1y=48:41 vdsty=55:49 vdstx=63:56",
    "",
)
_VOP3SD: Final = make_format("vop3sd", 8, "110101", f"{_VOP3} sdst=14:8")
_DS: Final = make_format(
    *("ds", 8, "110110"),
    "offset0=7:0 offset1=15:8 gds=17 op=25:18 addr=39:32 data0=47:40 data1=55:48 vdst=63:56",
)
_FLAT11: Final = (
    "dlc=13 glc=14 slc=15 seg=17:16 op=24:18 addr=39:32 data=47:40 saddr=54:48 sve=55 vdst=63:56"
)


def _segment(form: Format, field: str, number: int) -> Format:
    """A format with a field that tells it from others."""
    high, low = form.fields[field]
    mask = (1 << high - low + 1) - 1
    return replace(form, mask=form.mask | mask << low, match=form.match | number << low)


_FLAT9: Final = (
    "sve=13 seg=15:14 sc0=16 nt=17 op=24:18 sc1=25 addr=39:32 data=47:40 saddr=54:48 acc=55"
    " vdst=63:56"
)
_NO_SADDR9: Final = 127


def _adapt_gfx9(name: str, fields: dict[str, int]) -> None:
    """Waits, offsets in scalar registers, and which registers are accumulators."""
    if name == "s_waitcnt":
        value = fields["simm16"]
        memory, scalar = value >> 14 << 4 | value & 15, value >> 8 & 15
        scalar = 63 if scalar == 15 else scalar
        fields["simm16"] = memory << 10 | scalar << 4 | value >> 4 & 7
    elif "soffset_en" in fields:
        if not fields["soffset_en"]:
            fields["soffset"] = _NULL9 if fields["imm"] else fields["offset"] & 127
        if not fields["imm"]:
            fields["offset"] = 0
    elif name.startswith("v_bitop3_"):
        fields["bitop3"] = fields["neg"] | fields["abs"] << 3 | fields["omod"] << 6
    elif fields.get("saddr") == _NO_SADDR9:
        fields["saddr"] = _NULL9
    held = []
    if fields.get("acc") and "blgp" not in fields:
        held = ["vdst", "data", "data0", "data1", "vdata"]
    elif "blgp" in fields:
        held = ["src0"] * (fields["acc"] & 1) + ["src1"] * (fields["acc"] >> 1)
        sums = ["vdst", *["src2"] * (fields["src2"] >= VGPR and "smfmac" not in name)]
        held += sums if fields["acc_cd"] else []
    elif name.startswith("v_accvgpr_"):
        held = {"read": ["src0"], "write": ["vdst"]}.get(name.split("_")[2], ["src0", "vdst"])
        held = [field for field in held if field == "vdst" or fields[field] >= VGPR]
    for field in held:
        if field in fields:
            fields[field] += ACCUMULATOR


# But for v_accvgpr_read_b32 and v_accvgpr_write_b32.
_MATRICES9: Final = frozenset(range(0x3E, 0x80)) - {0x58, 0x59}
_NULL9: Final = 125  # which means nothing there
_NULL10: Final = 125
_OFF10: Final = 127  # neither a vector register nor a scalar one
_FLAT10: Final = (
    "dlc=12 lds=13 seg=15:14 glc=16 slc=17 op=24:18 addr=39:32 data=47:40 saddr=54:48 vdst=63:56"
)


def _adapt_gfx10(name: str, fields: dict[str, int]) -> None:
    """Waits have their counters elsewhere, and scratch accesses no bit for their register."""
    if name == "s_waitcnt":
        value = fields["simm16"]
        memory = value >> 14 << 4 | value & 15
        fields["simm16"] = memory << 10 | (value >> 8 & 63) << 4 | value >> 4 & 7
    elif name.startswith("scratch_"):
        fields["sve"] = int(fields["saddr"] == _NULL10)
        if fields["saddr"] == _OFF10:
            fields["saddr"] = _NULL10


# The first whose bits match counts, so that longer prefixes stand before shorter ones.
GFX9: Final = Encoding(
    formats=(
        *_SCALAR,
        make_format(
            *("smem", 8, "110000"),
            "sbase=5:0 sdata=12:6 soffset_en=14 glc=16 imm=17 op=25:18 +offset=52:32 soffset=63:57",
        ),
        *_VECTOR[:3],
        make_format("vop3p", 8, "110100111", _VOP3P),
        make_format("vop3", 8, "110100", f"{_VOP3} abs=10:8 opsel=14:11"),
        make_format(
            *("ds", 8, "110110"),
            "offset0=7:0 offset1=15:8 gds=16 op=24:17 acc=25 addr=39:32 data0=47:40 data1=55:48"
            " vdst=63:56",
        ),
        _segment(make_format("flat", 8, "110111", f"offset=11:0 {_FLAT9}"), "seg", 0),
        _segment(make_format("scratch", 8, "110111", f"+offset=12:0 {_FLAT9}"), "seg", 1),
        _segment(make_format("global", 8, "110111", f"+offset=12:0 {_FLAT9}"), "seg", 2),
        make_format(
            *("mubuf", 8, "111000"),
            "offset=11:0 offen=12 idxen=13 sc0=14 sc1=15 lds=16 nt=17 op=24:18 vaddr=39:32"
            " vdata=47:40 srsrc=52:48 acc=55 soffset=63:56",
        ),
        make_format("mtbuf", 8, "111010", "op=18:15"),
        make_format("mimg", 8, "111100", "op=24:18"),
        make_format("exp", 8, "110001", "op=9:4"),
    ),
    segments=("flat", "scratch", "global"),
    vop3sd=make_format("vop3sd", 8, "110100", f"{_VOP3} sdst=14:8"),
    vop3sd_opcodes=frozenset((*range(0x119, 0x11F), 0x1E0, 0x1E1, 0x1E8, 0x1E9)),
    refused={"mtbuf": "typed buffers", "mimg": "images", "exp": "exports"},
    without={"saddr": _NO_SADDR9, "imm": 1},
    codes={124: M0, _NULL9: NULL},
    adapt=_adapt_gfx9,
    has_long_literals=False,
    has_dpp8=False,
    has_sdwa=True,
    cmpx_bit=0,
    mai=make_format(
        *("mai", 8, "110100111"),
        "vdst=7:0 cbsz=10:8 abid=14:11 acc_cd=15 op=22:16 src0=40:32 src1=49:41 src2=58:50"
        " acc=60:59 blgp=63:61",
    ),
    mai_opcodes=_MATRICES9,
)
GFX950: Final = replace(GFX9, mai_opcodes=_MATRICES9 | {0x2D, 0x2E, *range(0x35, 0x3E)})
"""CDNA4 has more products, in places that CDNA3 has nothing at."""
GFX10: Final = Encoding(
    formats=(
        *_SCALAR,
        make_format(
            *("smem", 8, "111101"),
            "sbase=5:0 sdata=12:6 dlc=14 glc=16 op=25:18 +offset=52:32 soffset=63:57",
        ),
        *_VECTOR,
        _LONG,
        _DS,
        _segment(make_format("flat", 8, "110111", f"offset=11:0 {_FLAT10}"), "seg", 0),
        _segment(make_format("scratch", 8, "110111", f"+offset=11:0 {_FLAT10}"), "seg", 1),
        _segment(make_format("global", 8, "110111", f"+offset=11:0 {_FLAT10}"), "seg", 2),
        make_format(
            *("mubuf", 8, "111000"),
            "offset=11:0 offen=12 idxen=13 glc=14 dlc=15 lds=16 op=24:18 vaddr=39:32 vdata=47:40"
            " srsrc=52:48 slc=54 tfe=55 soffset=63:56",
        ),
        make_format("mtbuf", 8, "111010", "op=18:16"),
        make_format("mimg", 8, "111100", "op=24:18"),
        make_format("exp", 8, "111110", "op=9:4"),
        make_format("vintrp", 4, "110010", "op=17:16"),
    ),
    segments=("flat", "scratch", "global"),
    vop3sd=_VOP3SD,
    vop3sd_opcodes=frozenset(
        (0x128, 0x129, 0x12A, 0x16D, 0x16E, 0x176, 0x177, 0x30F, 0x310, 0x319)
    ),
    refused={
        "mtbuf": "typed buffers",
        "mimg": "images",
        "exp": "exports",
        "vintrp": "interpolation",
    },
    without={"saddr": _NULL10, "soffset": _NULL10},
    codes={124: M0, _NULL10: NULL},
    adapt=_adapt_gfx10,
    has_sdwa=True,
    cmpx_bit=0x10,
)
GFX11: Final = Encoding(
    formats=(
        *_SCALAR,
        make_format(
            *("smem", 8, "111101"),
            "sbase=5:0 sdata=12:6 dlc=13 glc=14 op=25:18 +offset=52:32 soffset=63:57",
        ),
        *_VECTOR,
        _VOPD,
        _LONG,
        _DS,
        _segment(make_format("flat", 8, "110111", f"offset=12:0 {_FLAT11}"), "seg", 0),
        _segment(make_format("scratch", 8, "110111", f"+offset=12:0 {_FLAT11}"), "seg", 1),
        _segment(make_format("global", 8, "110111", f"+offset=12:0 {_FLAT11}"), "seg", 2),
        make_format(
            *("mubuf", 8, "111000"),
            "offset=11:0 slc=12 dlc=13 glc=14 op=25:18 vaddr=39:32 vdata=47:40 srsrc=52:48 tfe=53"
            " offen=54 idxen=55 soffset=63:56",
        ),
        make_format("mtbuf", 8, "111010", "op=18:15"),
        make_format("mimg", 8, "111100", "op=25:18"),
        make_format("exp", 8, "111110", "op=9:4"),
        make_format("vinterp", 8, "11001101", "op=22:16"),
        make_format("ldsdir", 4, "11001110", "op=21:20"),
    ),
    segments=("flat", "scratch", "global"),
    vop3sd=_VOP3SD,
    vop3sd_opcodes=frozenset((*range(0x120, 0x123), *range(0x2FC, 0x303))),  # section 15.3.5
    refused={
        "mtbuf": "typed buffers",
        "mimg": "images",
        "exp": "exports",
        "vinterp": "interpolation",
        "ldsdir": "interpolation",
    },
)
_WIDE: Final = "scope=51:50 th=54:52"
_FLAT12: Final = f"saddr=6:0 op=21:14 vdst=39:32 sve=49 {_WIDE} data=62:55 addr=71:64 +offset=95:72"
GFX12: Final = Encoding(
    formats=(
        *_SCALAR,
        make_format(
            *("smem", 8, "111101"),
            "sbase=5:0 sdata=12:6 op=18:13 scope=22:21 th=24:23 +offset=55:32 soffset=63:57",
        ),
        *_VECTOR,
        _VOPD,
        _LONG,
        _DS,
        make_format("flat", 12, "11101100", _FLAT12),
        make_format("scratch", 12, "11101101", _FLAT12),
        make_format("global", 12, "11101110", _FLAT12),
        make_format(
            *("mubuf", 12, "110001"),
            f"soffset=6:0 op=21:14 tfe=22 vdata=39:32 srsrc=49:43 {_WIDE} format=61:55 offen=62"
            " idxen=63 vaddr=71:64 +offset=95:72",
        ),
        make_format("vimage", 12, "110100", "op=21:14"),
        make_format("vsample", 12, "111001", "op=21:14"),
        make_format("exp", 8, "111110", "op=9:4"),
        make_format("vinterp", 8, "11001101", "op=20:16"),
        make_format("ldsdir", 4, "11001110", "op=21:20"),
    ),
    segments=(),
    vop3sd=_VOP3SD,
    vop3sd_opcodes=frozenset((*range(0x120, 0x123), *range(0x2FC, 0x303))),
    refused={
        "vimage": "images",
        "vsample": "images",
        "exp": "exports",
        "vinterp": "interpolation",
        "ldsdir": "interpolation",
    },
)
ENCODINGS: Final = {
    "gfx942": GFX9,
    "gfx950": GFX950,
    **dict.fromkeys((f"gfx103{number}" for number in range(7)), GFX10),
    **dict.fromkeys(("gfx1100", "gfx1101", "gfx1102", "gfx1103"), GFX11),
    **dict.fromkeys(("gfx1150", "gfx1151", "gfx1152", "gfx1153"), GFX11),
    **dict.fromkeys(("gfx1200", "gfx1201"), GFX12),
}
"""By chip."""
