"""What CDNA3 has and RDNA has not, against numpy and a second writing of the manual's tables."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gpu.core.errors import Unsupported
from gpu.sim.isa.faults import IllegalInstruction
from gpu.sim.isa.rdna.decode import Decoder, UnknownInstruction
from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.isa.rdna.formats import DPP16, DPP16_FIELDS
from sim.isa.asm import EXEC, VCC, V, op
from sim.isa.bare import run_asm
from sim.isa.cdna import LANES, OUT, brain, compute, drawn, operand, sums

CHIP = "gfx942"
emit = partial(op, chip=CHIP)
END = emit("s_endpgm")


KINDS = {
    "f16": (np.float16, (16, 8)),
    "bf16": (np.uint16, (16, 8)),
    "i8": (np.int8, (32, 16)),
    "f32": (np.float32, (4, 2)),
}


@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_matrices(kind: str, side: int) -> None:
    """Sums in vector registers or accumulators; the second product adds to the first."""
    accumulates = (kind in ("f16", "i8")) == (side == 16)
    held, depths = KINDS[kind]
    depth = depths[side == 32]
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 9, (side, depth)), rng.integers(-8, 9, (depth, side))
    coded = [brain(m) if kind == "bf16" else m for m in (a, b.T)]
    result = "i32" if kind == "i8" else "f32"
    count = side * side // LANES
    fields = {"src0": V + 8, "src1": V + 16, "acc_cd": int(accumulates)}
    first = 0 if accumulates else OUT
    name = f"v_mfma_{result}_{side}x{side}x{depth}_{kind}"
    body = emit(name, vdst=first, src2=128, **fields)
    body += emit(name, vdst=first, src2=V + first, **fields)
    if accumulates:
        for n in range(count):
            body += emit("v_accvgpr_read_b32", vdst=OUT + n, src0=V + n)
    got = compute(body, *(operand(m, held) for m in coded), results=count)
    found = sums(got.view(np.int32 if kind == "i8" else np.float32), side)
    np.testing.assert_array_equal(found, 2 * (a @ b))


def test_accumulators_are_registers_of_their_own() -> None:
    rng = np.random.default_rng(2)
    x = drawn(rng)
    body = emit("v_accvgpr_write_b32", vdst=5, src0=V + 8) + emit("v_mov_b32", vdst=5, src0=129)
    body += emit("v_accvgpr_mov_b32", vdst=7, src0=V + 5)
    body += emit("v_lshlrev_b32", vdst=2, src0=130, vsrc1=0)
    body += emit("ds_store_b32", addr=2, data0=7, acc=1) + emit("ds_load_b32", vdst=OUT, addr=2)
    np.testing.assert_array_equal(compute(body, x)[0], x)


@pytest.mark.parametrize(("number", "bank"), [(64, "v"), (V, "a")])
def test_registers_have_bounds(number: int, bank: str) -> None:
    """v63 and a63 are the last."""
    body = emit("v_accvgpr_read_b32", vdst=OUT, src0=V + 64)
    if bank == "v":
        body = emit("v_mov_b32", vdst=number, src0=129)
    with pytest.raises(IllegalInstruction, match=f"{bank}64 is used, the wave has 64"):
        compute(body, np.zeros(LANES, np.uint32))


def test_comparisons_to_exec_write_their_result_too() -> None:
    x, y = drawn(np.random.default_rng(3), 2, LANES)
    body = emit("v_mov_b32", vdst=OUT, src0=128)
    body += emit("v_cmpx_lt_u32", "vopc", src0=V + 8, vsrc1=16) + emit(
        "v_mov_b32", vdst=OUT, src0=129
    )
    body += emit("s_mov_b64", sdst=EXEC, ssrc0=193)
    for n in range(2):
        body += emit("v_mov_b32", vdst=OUT + 1 + n, src0=VCC + n)
    less, low, high = compute(body, x, y, results=3)
    np.testing.assert_array_equal(less, x < y)
    mask = sum(1 << lane for lane in range(LANES) if x[lane] < y[lane])
    assert (low[0], high[0]) == (mask & 0xFFFFFFFF, mask >> 32)


def test_results_of_16_bits_clear_the_upper_half() -> None:
    x, y = drawn(np.random.default_rng(4), 2, LANES) & 0x3FFF3FFF
    start = emit("v_mov_b32", vdst=OUT, src0=255, literal=0x12340000)
    added = compute(start + emit("v_add_f16", vdst=OUT, src0=V + 8, vsrc1=16), x, y)[0]
    np.testing.assert_array_equal(added >> 16, 0)
    short = {"vdst": OUT, "src0": V + 8, "src1": V + 16, "src2": V + 8}
    kept = compute(start + emit("v_mad_u16", **short), x, y)[0]  # of those that have OP_SEL
    np.testing.assert_array_equal(kept >> 16, 0x1234)
    legacy = ENCODINGS[CHIP].by_name["vop3"].join({**short, "op": 0x1EB}).to_bytes(8, "little")
    np.testing.assert_array_equal(compute(start + legacy, x, y)[0], kept & 0xFFFF)
    upper = emit("v_fma_f16", vdst=OUT, src0=V + 8, src1=V + 16, src2=V + 8, opsel=8)
    kept = compute(start + upper, x, y)[0]
    np.testing.assert_array_equal(kept & 0xFFFF, 0)
    assert (kept >> 16 != 0x1234).any()


@pytest.mark.parametrize(("name", "count"), [("add", 2), ("mul", 2), ("fma", 3)])
def test_pairs_of_singles(name: str, count: int) -> None:
    """The first source's halves are swapped, the second's upper one is negated."""
    rng = np.random.default_rng(5)
    given = [rng.normal(size=(2, LANES)).astype(np.float32) for _ in range(count)]
    sources = {f"src{n}": V + 8 + 8 * n for n in range(count)}
    chosen = {"opsel": 1, "opsel_hi": 2, "opsel_hi2": 1, "neg_hi": 2}
    got = compute(emit(f"v_pk_{name}_f32", vdst=OUT, **sources, **chosen), *given, results=2)
    x, y = given[0][::-1], given[1] * np.array([[1], [-1]], np.float32)
    want = {"add": lambda: x + y, "mul": lambda: x * y}.get(name)
    exact = want() if want else (x.astype(np.float64) * y + given[2]).astype(np.float32)
    np.testing.assert_allclose(got.view(np.float32), exact, rtol=2e-7)


def test_pairs_are_made_of_either_half() -> None:
    x, y = (drawn(np.random.default_rng(n), 2, LANES) for n in (6, 7))
    body = emit("v_pk_mov_b32", vdst=OUT, src0=V + 8, src1=V + 16, opsel=1, opsel_hi=3)
    np.testing.assert_array_equal(compute(body, x, y, results=2), [x[1], y[0]])


def test_lanes_of_the_whole_wave_are_permuted() -> None:
    rng = np.random.default_rng(8)
    x, to = drawn(rng), rng.permutation(LANES).astype(np.uint32)
    back = emit("ds_bpermute_64_b32", vdst=OUT, addr=16, data0=8)
    np.testing.assert_array_equal(compute(back, x, 4 * to)[0], x[to])
    forth = emit("ds_permute_64_b32", vdst=OUT, addr=16, data0=8)
    np.testing.assert_array_equal(compute(forth, x, 4 * to)[0][to], x)


@pytest.mark.parametrize(
    ("control", "source"),
    [
        (0x130, lambda lane: lane + 1),
        (0x134, lambda lane: (lane + 1) % 64),
        (0x138, lambda lane: lane - 1),
        (0x13C, lambda lane: (lane - 1) % 64),
        (0x142, lambda lane: lane // 16 * 16 - 1),
        (0x143, lambda lane: 31 if lane >= 32 else -1),
    ],
)
def test_values_move_between_rows(control: int, source: Any) -> None:
    x = drawn(np.random.default_rng(9))
    extra = DPP16_FIELDS.join({"vsrc0": 8, "ctrl": control, "bank": 15, "row": 15})
    body = emit("v_mov_b32", vdst=OUT, src0=135) + emit(
        "v_mov_b32", "vop1", extra, vdst=OUT, src0=DPP16
    )
    lanes = [source(lane) for lane in range(LANES)]
    want = [x[lane] if 0 <= lane < LANES else 7 for lane in lanes]
    np.testing.assert_array_equal(compute(body, x)[0], want)


def test_long_encodings_have_no_literals() -> None:
    code = emit("v_add_f32", "vop3", 1, vdst=1, src0=255, src1=V) + bytes(4)
    with pytest.raises(UnknownInstruction, match="no literal may follow vop3"):
        Decoder(CHIP).decode(code)


def test_waves_have_64_lanes() -> None:
    with pytest.raises(Unsupported, match="whose waves have 64"):
        run_asm(END, (1, 1, 1), (32, 1, 1), b"", chip=CHIP)
