"""The scalar ALU, by hand: results and the condition bit."""

from __future__ import annotations

import numpy as np
import pytest

from sim.isa.asm import END, EXEC, op
from sim.isa.bare import run_asm

TOP, ONES = 0x80000000, 0xFFFFFFFF


def scalar(name: str, *sources: int, scc: int = 0, old: int = 0, wide: bool = False) -> list[int]:
    """[result, SCC] of an instruction; with `wide` values are pairs of registers."""
    code = op("s_load_b64", sdata=4, sbase=0)
    for number, value in enumerate((old, *sources)):
        for half in range(2):
            word = value >> 32 * half & ONES
            code += op("s_mov_b32", sdst=8 + 2 * number + half, ssrc0=255, literal=word)
    code += op("s_cmp_lg_u32", ssrc0=128 + scc, ssrc1=128)
    operands = {f"ssrc{number}": 10 + 2 * number for number in range(len(sources))}
    if "cmp" not in name:
        operands["sdst"] = 8
    code += op(name, **operands)
    code += op("s_cselect_b32", sdst=20, ssrc0=129, ssrc1=128)
    code += op("s_mov_b32", sdst=EXEC, ssrc0=129) + op("v_mov_b32", vdst=9, src0=128)
    for number, source in enumerate((8, 9, 20)):
        code += op("v_mov_b32", vdst=1, src0=source)
        code += op("global_store_b32", addr=9, data=1, saddr=4, offset=4 * number)
    out = np.zeros(4, np.uint32)
    run_asm(code + END, (1, 1, 1), (32, 1, 1), [out])
    low, high, condition = (int(v) for v in out[:3])
    return [low | high << 32 if wide else low, condition]


@pytest.mark.parametrize(
    ("name", "x", "y", "scc", "want"),
    [
        ("s_add_u32", ONES, 2, 0, [1, 1]),
        ("s_addc_u32", ONES, 0, 1, [0, 1]),
        ("s_addc_u32", 3, 4, 1, [8, 0]),
        ("s_sub_u32", 1, 2, 0, [ONES, 1]),
        ("s_subb_u32", 5, 5, 1, [ONES, 1]),
        ("s_subb_u32", 6, 5, 1, [0, 0]),
        ("s_add_i32", 0x7FFFFFFF, 1, 0, [TOP, 1]),
        ("s_sub_i32", TOP, 1, 0, [0x7FFFFFFF, 1]),
        ("s_absdiff_i32", 3, 10, 0, [7, 1]),
        ("s_lshl1_add_u32", TOP, 1, 0, [1, 1]),
        ("s_min_i32", ONES, 1, 0, [ONES, 1]),
        ("s_min_u32", ONES, 1, 0, [1, 0]),
        ("s_max_u32", ONES, 1, 0, [ONES, 1]),
        ("s_and_not1_b32", 0xFF, 0x0F, 0, [0xF0, 1]),
        ("s_nand_b32", ONES, ONES, 1, [0, 0]),
        ("s_lshl_b32", 1, 33, 0, [2, 1]),
        ("s_ashr_i32", TOP, 31, 0, [ONES, 1]),
        ("s_bfe_u32", 0xABCD, 8 << 16 | 4, 0, [0xBC, 1]),
        ("s_bfe_i32", 0xABCD, 8 << 16 | 4, 0, [0xFFFFFFBC, 1]),
        ("s_bfm_b32", 4, 8, 1, [0xF00, 1]),
        ("s_mul_hi_i32", ONES, ONES, 0, [0, 0]),
        ("s_cselect_b32", 7, 9, 0, [9, 0]),
        ("s_pack_lh_b32_b16", 0x11112222, 0x33334444, 0, [0x33332222, 0]),
        ("s_pack_hl_b32_b16", 0x11112222, 0x33334444, 0, [0x44441111, 0]),
        ("s_cmp_gt_i32", ONES, 1, 0, [0, 0]),
        ("s_cmp_gt_u32", ONES, 1, 0, [0, 1]),
        ("s_bitcmp1_b32", 4, 2, 0, [0, 1]),
    ],
)
def test_two_sources(name: str, x: int, y: int, scc: int, want: list[int]) -> None:
    if "cmp" in name:
        assert scalar(name, x, y, scc=scc)[1] == want[1]
    else:
        assert scalar(name, x, y, scc=scc) == want


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("s_not_b32", ONES, [0, 0]),
        ("s_brev_b32", 1, [TOP, 0]),
        ("s_ctz_i32_b32", 0, [ONES, 0]),
        ("s_clz_i32_u32", 1, [31, 0]),
        ("s_cls_i32", 0, [ONES, 0]),
        ("s_sext_i32_i8", 0x180, [0xFFFFFF80, 0]),
        ("s_abs_i32", ONES, [1, 1]),
        ("s_bcnt1_i32_b32", 0xFF, [8, 1]),
        ("s_bcnt0_i32_b32", ONES, [0, 0]),
        ("s_quadmask_b32", 0x0100_0010, [0b0100_0010, 1]),
        ("s_wqm_b32", 0x0100_0010, [0x0F00_00F0, 1]),
        ("s_bitset1_b32", 35, [0xF8, 0]),  # of 0xF0
        ("s_bitset0_b32", 4, [0xE0, 0]),
    ],
)
def test_one_source(name: str, x: int, want: list[int]) -> None:
    assert scalar(name, x, old=0xF0) == want


def test_wide_operations() -> None:
    assert scalar("s_lshl_b64", 1, 40, wide=True) == [1 << 40, 1]
    assert scalar("s_ashr_i64", 1 << 63, 63, wide=True) == [(1 << 64) - 1, 1]
    assert scalar("s_and_b64", 7 << 40, 2 << 40, wide=True) == [2 << 40, 1]
    assert scalar("s_bfe_i64", 0xABCD << 32, 8 << 16 | 36, wide=True) == [(1 << 64) - 0x44, 1]
    assert scalar("s_bitreplicate_b64_b32", 0x80000001, wide=True) == [3 << 62 | 3, 0]


def test_saveexec_keeps_the_old_mask() -> None:
    got = scalar("s_and_saveexec_b32", 0x0000FFFF)
    assert got == [ONES, 1]
    assert scalar("s_and_not1_saveexec_b32", ONES)[1] == 0  # nothing is left
