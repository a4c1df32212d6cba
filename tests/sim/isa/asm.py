"""A tiny assembler over the format table, for tests that need exact instructions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.sim.isa.rdna.dispatch import DEFAULT_MODE
from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.isa.rdna.table import load_table
from sim.isa.bare import run_asm

V = 256  # v0 as a source
VCC, EXEC = 106, 126


CHIP = "gfx1100"


@cache
def _opcodes(chip: str) -> dict[tuple[str, str], int]:
    return {(o.name, o.format): o.number for o in load_table(chip).values()}


def op(
    name: str, form: str = "", literal: int | None = None, chip: str = CHIP, **fields: int
) -> bytes:
    """An instruction; `form` chooses among encodings, the shortest by default."""
    opcodes = _opcodes(chip)
    known = [f for n, f in opcodes if n == name]
    chosen = form or known[0]
    layout = ENCODINGS[chip].by_name[chosen]
    if chosen in ("global", "scratch", "smem"):
        without = ENCODINGS[chip].without
        fields = {name: without[name] for name in without if name in layout.fields} | fields
    code = layout.join({**fields, "op": opcodes[name, chosen]}).to_bytes(layout.size, "little")
    return code if literal is None else code + literal.to_bytes(4, "little")


END = op("s_endpgm")
LANE_OFFSETS = op("v_lshlrev_b32", vdst=1, src0=131, vsrc1=0)  # v1 = 8 * v0


def evaluate(
    name: str,
    *sources: npt.NDArray[Any],
    form: str = "",
    result: Any = np.uint32,
    mode: int = DEFAULT_MODE,
    start: npt.NDArray[Any] | None = None,
    vcc: int = 0,
    observe: int = V + 30,
    chip: str = CHIP,
    literal: int | None = None,
    **fields: int,
) -> npt.NDArray[Any]:
    """What an instruction makes of rows of 32 lanes; `start` is what its destination held.

    `observe` is the register to look at afterwards; comparisons give VCC.
    Sources are in v10, v14, v18 and the result in v30, both in two registers where they are wide.
    """
    arrays = [_padded(source) for source in sources]
    out = _padded(start if start is not None else np.zeros(32, result))
    emit = partial(op, chip=chip)
    code = emit("v_lshlrev_b32", vdst=1, src0=131, vsrc1=0)  # v1 = 8 * v0
    for number in range(len(arrays) + 1):  # s[4:5] and on: addresses of the arrays
        code += emit("s_load_b64", sdata=4 + 2 * number, sbase=0, offset=8 * number)
    for number in range(len(arrays)):
        code += emit("global_load_b64", vdst=10 + 4 * number, addr=1, saddr=4 + 2 * number)
    last = 4 + 2 * len(arrays)
    code += emit("global_load_b64", vdst=30, addr=1, saddr=last)
    names = ("src0", "vsrc1" if form in ("", "vop2", "vopc") else "src1", "src2")
    used = {n: 10 + 4 * i + (0 if n == "vsrc1" else V) for i, n in enumerate(names[: len(arrays)])}
    code += emit("s_mov_b32", sdst=VCC, ssrc0=255, literal=vcc)
    used = {**used, **fields} if "cmp" in name else {"vdst": 30, **used, **fields}
    code += emit(name, form, literal, **used)
    if "cmp" in name and observe == V + 30:
        observe = VCC
    if observe != V + 30:
        code += emit("v_mov_b32", vdst=30, src0=observe)
    code += emit("global_store_b64", addr=1, data=30, saddr=last) + emit("s_endpgm")
    run_asm(code, (1, 1, 1), (32, 1, 1), [*arrays, out], mode=mode, chip=chip)
    width = np.dtype(result).itemsize
    return out.view(np.uint8).reshape(32, 8)[:, :width].copy().view(result).reshape(32)


def _padded(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """32 lanes of 8 bytes; shorter arrays are repeated."""
    row = np.resize(values, 32)
    bytes_ = np.zeros((32, 8), np.uint8)
    bytes_[:, : row.itemsize] = row.view(np.uint8).reshape(32, -1)
    return bytes_.view(np.uint64).reshape(32)


def words(values: Sequence[int]) -> npt.NDArray[np.uint32]:
    return np.array(values, np.uint32)
