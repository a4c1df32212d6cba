"""What RDNA2 has and RDNA3 has not, against numpy and a second writing of the manual."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.sim.isa.faults import IllegalInstruction
from gpu.sim.isa.rdna.formats import SDWA, SDWA_FIELDS, SDWAB_FIELDS
from sim.isa.asm import VCC, V, evaluate, op, words
from sim.isa.bare import run_asm

Array = npt.NDArray[Any]
CHIP = "gfx1030"
NULL = 125
LANES = 32
emit = partial(op, chip=CHIP)
run = partial(run_asm, chip=CHIP)
compute = partial(evaluate, chip=CHIP)
END = emit("s_endpgm")
DWORD = 6


def drawn(rng: np.random.Generator) -> Array:
    return rng.integers(0, 1 << 32, LANES, np.uint64).astype(np.uint32)


def part(values: Array, chosen: int, signed: int) -> Array:
    """A byte or half of each dword, or all of it."""
    if chosen == DWORD:
        return values
    size, place = (8, chosen) if chosen < 4 else (16, chosen - 4)
    kind = np.dtype(f"{'i' if signed else 'u'}{size // 8}")
    return values.view(kind)[place :: 32 // size].astype(np.int64).astype(np.uint32)


def put(value: Array, old: Array, chosen: int, unused: int) -> Array:
    """A result in its part of a register; the others zero, signs, or as they were."""
    if chosen == DWORD:
        return value
    size, place = (8, chosen) if chosen < 4 else (16, chosen - 4)
    low = value & ((1 << size) - 1)
    if unused == 0:
        return low << size * place
    if unused == 1:
        signed = (low.astype(np.int64) ^ 1 << size - 1) - (1 << size - 1)
        return (signed << size * place).astype(np.uint32)
    return (old & ~np.uint32((1 << size) - 1 << size * place)) | low << size * place


@pytest.mark.parametrize("seed", range(3))
def test_bytes_and_halves_of_operands(seed: int) -> None:
    """A wave that does the same with each way to choose them, some drawn at random."""
    rng = np.random.default_rng(seed)
    ways = [(d, 0, 0, 0, 0, u) for d in range(7) for u in range(3)]
    ways += [(DWORD, a, s, b, t, 0) for a, s, b, t in np.ndindex(7, 2, 7, 2)]
    chosen = [ways[n] for n in rng.choice(len(ways), 40, replace=False)]
    x, y, old = (drawn(rng) for _ in "xyo")
    out = np.zeros((len(chosen), LANES), np.uint32)
    code = b"".join(emit("s_load_b64", sdata=4 + 2 * n, sbase=0, offset=8 * n)
                    for n in range(4))  # fmt: skip
    code += emit("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    for n, register in enumerate((10, 11, 12)):
        code += emit("global_load_b32", vdst=register, addr=1, saddr=4 + 2 * n)
    want = []
    for dst, a, s, b, t, unused in chosen:
        extra = SDWA_FIELDS.join({"vsrc0": 10, "dst": dst, "unused": unused, "sel0": a, "sext0": s,
                                  "sel1": b, "sext1": t})  # fmt: skip
        code += emit("v_mov_b32", vdst=13, src0=V + 12)
        code += emit("v_add_nc_u32", "vop2", extra, vdst=13, src0=SDWA, vsrc1=11)
        code += emit("global_store_b32", addr=1, data=13, saddr=10)
        code += emit("s_add_u32", sdst=10, ssrc0=10, ssrc1=255, literal=4 * LANES)
        code += emit("s_addc_u32", sdst=11, ssrc0=11, ssrc1=128)
        want.append(put(part(x, a, s) + part(y, b, t), old, dst, unused))
    run(code + END, (1, 1, 1), (LANES, 1, 1), [x, y, old, out])
    for way, row, expected in zip(chosen, out, want, strict=True):
        np.testing.assert_array_equal(row, expected, err_msg=str(way))


def test_halves_as_floats_with_signs() -> None:
    """The high half of one, negated, plus the low half of the other's magnitude."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, LANES, 2)).astype(np.float16)
    extra = {"vsrc0": 10, "dst": 5, "unused": 2, "sel0": 5, "neg0": 1, "sel1": 4, "abs1": 1}
    got = compute(
        "v_add_f16",
        *(np.ascontiguousarray(each).view(np.uint32).reshape(LANES) for each in (x, y)),
        form="vop2",
        start=words([0xABCD]),
        src0=SDWA,
        literal=SDWA_FIELDS.join(extra),
    )
    np.testing.assert_array_equal(got & 0xFFFF, 0xABCD)
    high = (got >> 16).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(high, abs(y[:, 0]) - x[:, 1])


@pytest.mark.parametrize("scalar", [VCC, 20])
def test_comparisons_of_bytes_name_their_result(scalar: int) -> None:
    x, y = drawn(np.random.default_rng(4)), drawn(np.random.default_rng(5))
    extra = {"vsrc0": 10, "named": int(scalar != VCC), "sdst": scalar, "sel0": 1, "sel1": 2}
    got = compute(
        "v_cmp_lt_u32",
        *(x, y),
        form="vopc",
        src0=SDWA,
        literal=SDWAB_FIELDS.join(extra),
        observe=scalar,
    )
    less = part(x, 1, 0) < part(y, 2, 0)
    assert got[0] == sum(1 << lane for lane in range(LANES) if less[lane])


@pytest.mark.parametrize(
    ("name", "bits", "signed"),
    [("v_dot4_i32_i8", 8, True), ("v_dot8_i32_i4", 4, True), ("v_dot2_i32_i16", 16, True),
     ("v_dot2_u32_u16", 16, False)],
)  # fmt: skip
def test_dot_products(name: str, bits: int, signed: bool) -> None:
    rng = np.random.default_rng(6)
    x, y, start = (drawn(rng) for _ in "xys")
    total = start.astype(np.int64)
    for low in range(0, 32, bits):
        pieces = [(v.astype(np.int64) >> low) & ((1 << bits) - 1) for v in (x, y)]
        half = 1 << bits - 1
        pieces = [(p ^ half) - half if signed else p for p in pieces]
        total = total + pieces[0] * pieces[1]
    got = compute(name, x, y, start, form="vop3p", opsel_hi=3, opsel_hi2=1)
    np.testing.assert_array_equal(got, (total & 0xFFFFFFFF).astype(np.uint32))


def test_compare_and_swap_of_lds_has_the_comparand_first() -> None:
    out = np.zeros(2, np.uint32)
    code = emit("s_load_b64", sdata=4, sbase=0) + emit("v_mov_b32", vdst=1, src0=128)
    for register, value in ((2, 7), (3, 9)):  # compared, new
        code += emit("v_mov_b32", vdst=register, src0=128 + value)
    code += emit("ds_store_b32", addr=1, data0=2)
    code += emit("ds_cmpst_rtn_b32", vdst=4, addr=1, data0=2, data1=3)
    code += emit("ds_load_b32", vdst=5, addr=1)
    code += emit("global_store_b64", addr=1, data=4, saddr=4)
    run(code + END, (1, 1, 1), (1, 1, 1), [out], lds=64)
    assert out.tolist() == [7, 9]


def descriptor(lanes: int, **changes: int) -> list[int]:
    """Words 1 to 3 of scratch memory's: swizzled, its lanes side by side, not checked."""
    usual = {"swizzle": 1 << 31, "records": 1 << 16, "by_lane": 1 << 23, "select": 2 << 28}
    has = usual | changes
    stride = lanes.bit_length() - 4 << 21
    return [has["swizzle"], has["records"], has["by_lane"] | has["select"] | stride]


def scratch_code(high: int, records: int, last: int) -> bytes:
    """Stores v[2:3] = (lane, lane + 64) at dwords 1 and 2 of each lane."""
    code = emit("s_load_b64", sdata=4, sbase=0)
    code += emit("s_or_b32", sdst=5, ssrc0=5, ssrc1=255, literal=high)
    for number, word in ((6, records), (7, last)):
        code += emit("s_mov_b32", sdst=number, ssrc0=255, literal=word)
    code += emit("v_mov_b32", vdst=1, src0=132) + emit("v_mov_b32", vdst=2, src0=V + 0)
    code += emit("v_add_nc_u32", vdst=3, src0=192, vsrc1=0)
    return code + emit("buffer_store_b64", vdata=2, vaddr=1, srsrc=1, soffset=128, offen=1)


def test_scratch_lies_dword_by_dword_of_all_lanes() -> None:
    memory = np.zeros((4, LANES), np.uint32)
    run(scratch_code(*descriptor(LANES)) + END, (1, 1, 1), (LANES, 1, 1), [memory])
    lanes = np.arange(LANES)
    np.testing.assert_array_equal(memory, [0 * lanes, lanes, lanes + 64, 0 * lanes])


@pytest.mark.parametrize("changed", ["swizzle", "records", "by_lane", "select"])
def test_other_buffers_are_refused(changed: str) -> None:
    code = scratch_code(*descriptor(LANES, **{changed: 0})) + END
    with pytest.raises(IllegalInstruction, match="descriptor of scratch memory alone"):
        run(code, (1, 1, 1), (LANES, 1, 1), [np.zeros((4, LANES), np.uint32)])


def test_null_and_m0_have_changed_places() -> None:
    """M0 is 124 here, NULL 125."""
    out = np.zeros(2, np.uint32)
    code = emit("s_load_b64", sdata=4, sbase=0) + emit("v_mov_b32", vdst=1, src0=128)
    code += emit("s_mov_b32", sdst=124, ssrc0=137) + emit("s_mov_b32", sdst=125, ssrc0=138)
    code += emit("v_mov_b32", vdst=2, src0=124) + emit("v_mov_b32", vdst=3, src0=125)
    run(code + emit("global_store_b64", addr=1, data=2, saddr=4) + END, (1, 1, 1), (1, 1, 1), [out])
    assert out.tolist() == [9, 0]
