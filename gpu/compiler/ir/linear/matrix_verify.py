"""Rules of the linear IR for matrix instructions and asynchronous copies, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

from gpu.compiler.ir.linear import Inst, Program, block_size
from gpu.compiler.ir.matrix import COPY_BYTES, MATRICES, TILE_BYTES, TILE_ROWS, WARP


class Checker(Protocol):
    """What checks the other instructions."""

    program: Program

    def require(self, condition: bool, rule: str) -> None:
        """Raises for the current instruction unless `condition` holds."""
        ...


def _is(inst: Inst, code: str, lanes: int) -> bool:
    return inst.dtype.code == code and inst.lanes == lanes


def _is_team(pointer: Inst) -> bool:
    return pointer.op == "local" and pointer.attr[1] == "team"


def _warps(check: Checker, inst: Inst, warp: int = WARP) -> None:
    threads = math.prod(block_size(check.program))
    check.require(
        threads % warp == 0, f"{inst.op} takes warps of {warp}, a block has {threads} threads"
    )


def _copy(check: Checker, inst: Inst) -> None:
    target, to, source, at, *mask = inst.args
    check.require(_is_team(target), "a copy goes to team memory")
    read = source.op == "param" and not check.program.params[source.attr[0]].written
    check.require(read, "a copy comes from a parameter that is only read")
    check.require(target.dtype is source.dtype, "both ends of a copy have one dtype")
    sizes = inst.attr[0] * target.dtype.itemsize in COPY_BYTES
    check.require(sizes, f"a copy has {COPY_BYTES} bytes, not {inst.attr[0]} elements")
    check.require(_is(to, "i64", 1) and _is(at, "i64", 1), "indices of a copy are i64")
    check.require(all(_is(m, "b1", 1) for m in mask), "the mask of a copy is a bool")


def _wait(check: Checker, inst: Inst) -> None:
    check.require(inst.attr[0] >= 0, "a wait is for all but some groups")


def _fragment(check: Checker, inst: Inst) -> None:
    _warps(check, inst)
    pointer, index = inst.args
    narrow = pointer.dtype is inst.dtype and inst.dtype.bits == 16
    check.require(_is_team(pointer) and narrow, "parts have 16-bit elements, from team memory")
    check.require(inst.lanes in (2, 4, 8), "a fragment has 1, 2 or 4 parts")
    check.require(_is(index, "i64", 1), "the index of a fragment is an i64")
    check.require(inst.attr[0] in (0, 1), "transposed is 0 or 1")


def _mma(check: Checker, inst: Inst) -> None:
    check.require(inst.attr[0] in MATRICES, f"{inst.attr[0]} is no matrix instruction")
    how = MATRICES[inst.attr[0]]
    if how.threads == 1:
        _mma_of_tiles(check, inst)
        return
    _warps(check, inst, how.threads)
    operand, _, of_sums = how.parts
    operands, sums, code = len(how.a) + len(how.b), len(how.c) * of_sums.held, how.sums.code
    parts, before = inst.args[:operands], inst.args[operands:]
    check.require(len(before) == sums, f"{how.name} takes {operands} parts and {sums} sums")
    for number, part in enumerate(parts):
        dtype = how.operands[number >= len(how.a)]
        check.require(_is(part, dtype.code, operand.held), "a part has another type")
    check.require(all(_is(s, code, 1) for s in before), f"sums are {code}")
    check.require(_is(inst, code, sums), f"the result has {sums} {code}")


def _mma_of_tiles(check: Checker, inst: Inst) -> None:
    """Each operand is a whole matrix."""
    how = MATRICES[inst.attr[0]]
    check.require(len(inst.args) == 3, f"{how.name} takes three tiles")
    codes = tuple(dtype.code for dtype in (*how.operands, how.sums))
    for arg, code, part in zip(inst.args, codes, how.parts, strict=True):
        check.require(_is(arg, code, part.held), f"{how.name} takes a tile of {part.held} {code}")
    check.require(_is(inst, codes[2], how.parts[2].held), "the result is a tile of sums")


def _tile(check: Checker, inst: Inst) -> None:
    pointer, index, *stored = inst.args
    tile = stored[0] if stored else inst
    nbytes = tile.lanes * tile.dtype.itemsize
    check.require(nbytes == TILE_ROWS * TILE_BYTES, f"a tile has {nbytes} bytes")
    check.require(_is(index, "i64", 1), f"the index of a {inst.op} is an i64")
    across = TILE_BYTES // pointer.dtype.itemsize
    check.require(inst.attr[0] >= across, f"rows of {across} elements are {inst.attr[0]} apart")
    check.require(not stored or pointer.op == "local", "a tile is stored to a local")


def _no_rule(check: Checker, inst: Inst) -> None:
    """It stands for itself."""


RULES: Final[dict[str, Callable[[Checker, Inst], None]]] = {
    "copy": _copy, "commit": _no_rule, "wait": _wait, "fragment": _fragment, "mma": _mma,
    "load_tile": _tile, "store_tile": _tile,
}  # fmt: skip
"""A rule for each of these instructions."""
POINTERS: Final = {"copy": (0, 2), "fragment": (0,), "load_tile": (0,), "store_tile": (0,)}
"""Which of their operands are pointers."""
