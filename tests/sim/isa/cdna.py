"""Runs CDNA's instructions on the lane engine, in one wave of 64 lanes, and lays out matrices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.isa.asm import op
from sim.isa.bare import run_asm

Array = npt.NDArray[Any]
LANES = 64
FIRST = 64  # the first accumulator among a wave's registers
OUT = 40


def run(code: bytes, arrays: list[Array], chip: str) -> None:
    def wave(usual: Any) -> Any:
        return replace(usual, lanes=LANES, vgprs=128, accumulators=FIRST)

    end = op("s_endpgm", chip=chip)
    run_asm(code + end, (1, 1, 1), (LANES, 1, 1), arrays, chip=chip, dispatch=wave, lds=256)


def compute(body: bytes, *inputs: Array, results: int = 1, chip: str = "gfx942") -> Array:
    """Runs code on inputs, of rows of 64 dwords from v8, v16, v24 on; gives those from v40 on."""
    emit = partial(op, chip=chip)
    rows = [np.atleast_2d(np.ascontiguousarray(each).view(np.uint32)) for each in inputs]
    out = np.zeros((results, LANES), np.uint32)
    code = b"".join(
        emit("s_load_b64", sdata=4 + 2 * n, sbase=0, offset=8 * n) for n in range(len(rows) + 1)
    )
    code += emit("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    for n, row in enumerate(rows):
        for place in range(len(row)):
            at = {"addr": 1, "saddr": 4 + 2 * n, "offset": 256 * place}
            code += emit("global_load_b32", vdst=8 + 8 * n + place, **at)
    code += body
    for place in range(results):
        if place == 8:  # offsets are below 4096
            code += emit("v_add_nc_u32", vdst=1, src0=255, vsrc1=1, literal=2048)
        at = {"addr": 1, "saddr": 4 + 2 * len(rows), "offset": 256 * (place % 8)}
        code += emit("global_store_b32", data=OUT + place, **at)
    run(code, [*rows, out], chip)
    return out


def drawn(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(0, 1 << 32, shape or (LANES,), np.uint64).astype(np.uint32)


def operand(values: Array, kind: Any) -> Array:
    """Registers of A, of a (side, depth) matrix; of B its transpose."""
    side, depth = values.shape
    run_ = depth * side // LANES
    held = np.zeros((LANES, run_), kind)
    for row in range(side):
        for k in range(depth):
            held[row + side * (k // run_), k % run_] = values[row, k]
    return np.ascontiguousarray(held.view(np.uint32).T)


def sums(held: Array, side: int) -> Array:
    """The matrix that registers of C and D hold, (registers, 64)."""
    groups = LANES // side
    found = np.zeros((side, side), held.dtype)
    for row in range(side):
        for column in range(side):
            register = 4 * (row // (4 * groups)) + row % 4
            found[row, column] = held[register, column + side * (row // 4 % groups)]
    return found


def brain(values: Array) -> Array:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
