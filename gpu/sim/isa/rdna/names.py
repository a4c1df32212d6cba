"""What a chip's instructions are called here: operations that are alike have one name, RDNA3's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

Rename = Callable[[str], str]

_RDNA4: Final[Mapping[str, str]] = {
    "s_add_co_u32": "s_add_u32",
    "s_sub_co_u32": "s_sub_u32",
    "s_add_co_i32": "s_add_i32",
    "s_sub_co_i32": "s_sub_i32",
    "s_add_co_ci_u32": "s_addc_u32",
    "s_sub_co_ci_u32": "s_subb_u32",
    "s_addk_co_i32": "s_addk_i32",
    "s_wait_alu": "s_waitcnt_depctr",
    "v_mad_co_u64_u32": "v_mad_u64_u32",
    "v_mad_co_i64_i32": "v_mad_i64_i32",
}
_NUMBER: Final = re.compile(r"((?:min|max|med)3?|minmax|maxmin)_num_")

_OLDER: Final[Mapping[str, str]] = {
    "s_flbit_i32_b32": "s_clz_i32_u32",
    "s_flbit_i32_b64": "s_clz_i32_u64",
    "s_flbit_i32": "s_cls_i32",
    "s_flbit_i32_i64": "s_cls_i32_i64",
    "s_inst_prefetch": "s_set_inst_prefetch_distance",
    "v_ffbh_u32": "v_clz_i32_u32",
    "v_ffbl_b32": "v_ctz_i32_b32",
    "v_ffbh_i32": "v_cls_i32",
    "v_cvt_rpi_i32_f32": "v_cvt_nearest_i32_f32",
    "v_cvt_flr_i32_f32": "v_cvt_floor_i32_f32",
}
_MOVED: Final[Mapping[str, str]] = {
    "ubyte": "u8",
    "sbyte": "i8",
    "ushort": "u16",
    "sshort": "i16",
    "byte": "b8",
    "short": "b16",
    "dword": "b32",
    **{f"dwordx{count}": f"b{32 * count}" for count in (2, 3, 4, 8, 16)},
    "ubyte_d16": "d16_u8",
    "sbyte_d16": "d16_i8",
    "short_d16": "d16_b16",
    "ubyte_d16_hi": "d16_hi_u8",
    "sbyte_d16_hi": "d16_hi_i8",
    "byte_d16_hi": "d16_hi_b8",
    "short_d16_hi": "d16_hi_b16",
}
"""What older loads and stores move, as their names end."""
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("add", "sub", "csub", "inc", "dec"), "u"),
    **dict.fromkeys(("swap", "cmpswap", "and", "or", "xor"), "b"),
    "smin": "i",
    "smax": "i",
    "umin": "u",
    "umax": "u",
    "fmin": "f",
    "fmax": "f",
    "fcmpswap": "f",
}
"""What numbers an older atomic is of, by its verb."""
_MOVE: Final = re.compile(r"(\w+_(?:load|store)_)(u?s?(?:byte|short|dword)\w*)")
_ATOMIC: Final = re.compile(r"(\w+_atomic_)([a-z]+)(_x2)?")
_PARTS: Final = (
    *(("ds_read", "ds_load"), ("ds_write", "ds_store"), ("wrxchg", "storexchg")),
    *(("2st64_", "_2addr_stride64_"), ("load2_", "load_2addr_"), ("store2_", "store_2addr_")),
    *(("xchg2_", "xchg_2addr_"), ("andn2_", "and_not1_"), ("andn1_", "and_not0_")),
    *(("orn2_", "or_not1_"), ("orn1_", "or_not0_"), ("s_ff1_", "s_ctz_"), ("_tru_", "_t_")),
    *(("_pkrtz_", "_pk_rtz_"), ("_pknorm_", "_pk_norm_"), ("_legacy_", "_dx9_zero_")),
    ("v_dot2c_", "v_dot2acc_"),
)


_CDNA3: Final[Mapping[str, str]] = {
    "ds_bpermute_b32": "ds_bpermute_64_b32",
    "ds_permute_b32": "ds_permute_64_b32",
    "v_addc_co_u32": "v_add_co_ci_u32",
    "v_subb_co_u32": "v_sub_co_ci_u32",
    "v_subbrev_co_u32": "v_subrev_co_ci_u32",
}
_UNCARRIED: Final = re.compile(r"v_(add|sub|subrev)_([iu])(16|32)")


def of_cdna3(name: str) -> str:
    """Of CDNA3, whose additions without a carry have plain names, and whose LDS permutes 64 lanes.

    Its 8-bit floats are others than RDNA4's, in which ``fnuz`` tells them apart.
    """
    return of_cdna4(f"{name}_fnuz" if re.search(r"[fb][pf]8", name) else name)


def of_cdna4(name: str) -> str:
    """Of CDNA4, as CDNA3's, but that its 8-bit floats are those of RDNA4."""
    name = re.sub(r"_legacy_([fiu]16)", r"_\1", name)  # which clear the upper half
    name = _CDNA3.get(name, _UNCARRIED.sub(r"v_\1_nc_\2\3", name))
    return of_rdna2(name)


def of_rdna2(name: str) -> str:
    """Of RDNA2, most of whose names are older than RDNA3's."""
    if name in _OLDER:
        return _OLDER[name]
    if move := _MOVE.fullmatch(name):
        return move[1] + _MOVED.get(move[2], move[2])
    if (atomic := _ATOMIC.fullmatch(name)) and atomic[2] in _KINDS:
        kind, bits = _KINDS[atomic[2]], 64 if atomic[3] else 32
        verb = atomic[2][1:] if atomic[2][1:] in ("min", "max", "cmpswap") else atomic[2]
        return f"{atomic[1]}{verb}_{kind}{bits}"
    for older, newer in _PARTS:
        name = name.replace(older, newer)
    return name


def of_rdna4(name: str) -> str:
    """Of RDNA4: its ``min_num`` is what ``min`` is without MODE.IEEE, which it has not.

    Matrices lie in other registers than RDNA3's.
    """
    if name in _RDNA4:
        return _RDNA4[name]
    name = name.replace("v_wmma_", "v_wmma_rdna4_").replace("sub_clamp", "csub")
    return _NUMBER.sub(r"\1_", name)


def as_it_is(name: str) -> str:
    """Of RDNA3 and RDNA3.5."""
    return name
