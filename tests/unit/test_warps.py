"""What `warp_accesses` counts is what a warp asks for when the interpreter runs the program."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.compiler.ir.linear import Inst, Limit, Program, block_size
from gpu.compiler.ir.linear.interp import Machine, interpret_linear
from gpu.compiler.ir.linear.text import parse_linear
from gpu.compiler.ir.linear.warps import warp_accesses
from gpu.compiler.ir.matrix import HELD, SIDE
from gpu.core.dtype import dtypes
from tools.coalescing import TARGETS, memory, moved, programs

Array = np.ndarray[Any, Any]
WARP = 32
Seen = tuple[Array, Array, int]  # positions, which of them are reached, bytes of an element


def executed(program: Program, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[Inst, int], Seen]:
    """The first time that a warp does each access: the first warp of the block in the middle."""
    loops = [inst for inst in program.body if inst.op == "loop"]
    seen: dict[tuple[Inst, int], Seen] = {}
    plain = Machine.locate

    def locate(
        machine: Machine, inst: Inst, lanes: int, masks: tuple[Inst, ...], first: int = 0,
        offsets: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        position, reached = plain(machine, inst, lanes, masks, first, offsets)
        index = machine.values[inst.args[first + 1]]
        where = index if index.shape[1] == lanes else index + np.arange(lanes)
        shape = (machine.points, lanes)
        there = np.ones((machine.points, 1), np.bool_)
        for loop in loops:
            if loop.attr[0] == "grid":
                _, start, stop, step = loop.attr
                assert not isinstance(stop, Limit)
                middle = start + step * (len(range(start, stop, step)) // 2)
                there = there & (machine.values[loop] == middle)
        rows = np.flatnonzero(np.broadcast_to(there, (machine.points, 1))[:, 0])[:WARP]
        if len(rows) and (inst, first) not in seen:
            itemsize = inst.args[first].dtype.itemsize
            found = [np.broadcast_to(a, shape)[rows] for a in (where, reached)]
            seen[inst, first] = (found[0], found[1], itemsize)
        return position, reached

    monkeypatch.setattr(Machine, "locate", locate)
    rng = np.random.default_rng(len(program.body))
    buffers = [rng.integers(0, 3, p.elements).astype(p.dtype.np) for p in program.params]
    interpret_linear(program, buffers)
    return seen


def sectors_of(seen: Seen) -> int:
    where, reached, itemsize = seen
    asked = zip(where.flat, reached.flat, strict=True)
    return len({int(place) * itemsize // 32 for place, there in asked if there})


def rounds_of(seen: Seen) -> int:
    """Rounds of 32 banks: as many threads at once as ask for 128 bytes together."""
    where, reached, itemsize = seen
    together = 128 // max(where.shape[1] * itemsize, 4)
    total = 0
    for first in range(0, len(where), together):
        banks: dict[int, set[int]] = defaultdict(set)
        rows = slice(first, first + together)
        for place, there in zip(where[rows].flat, reached[rows].flat, strict=True):
            if there:
                word = int(place) * itemsize // 4
                banks[word % 32].add(word)
        total += max((len(words) for words in banks.values()), default=0)
    return total


def assert_counted(program: Program, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every access of `program` is counted as it is executed; returns what moved."""
    seen = executed(program, monkeypatch)
    accesses = iter(warp_accesses(program))
    numbers = []
    for inst in program.body:
        # A copy reads its third operand, and then writes to its first.
        for first in {"load": (0,), "store": (0,), "copy": (2, 0), "fragment": (0,)}.get(
            inst.op, ()
        ):
            pointer = inst.args[first]
            if pointer.op == "local" and pointer.attr[1] != "team":
                continue
            counted = next(accesses)
            where, reached, itemsize = seen.get(
                (inst, first), (np.zeros((1, 1)), np.zeros((1, 1), bool), 4)
            )
            if inst.op == "fragment":  # threads in turn say where a row of each part begins
                rows = inst.lanes // HELD * SIDE
                where, reached = where[:rows], reached[:rows]
            count = sectors_of if pointer.op == "param" else rounds_of
            assert counted.moved == count((where, reached, itemsize)), (inst, counted)
            numbers.append(counted.moved)
    assert next(accesses, None) is None
    return numbers


HEAD = """program k(out: f32[65536] written, x: f32[65536])
  %0 = param f32 out
  %1 = param f32 x
  %2 = const i64 4
  %3 = const i64 20
  %4 = const i64 3
  %5 = const i64 64
  %6 = local f32 4096 team
  %7 = loop thread 0..64
"""
SORTS = {
    "a mask that few threads pass": (
        """    %8 = lt b1 %7, %4
    %9 = load f32 %1, %7, %8
    store %6, %7, %9, %8
    store %0, %7, %9
""",
        [1, 1, 4],
    ),
    "a mask that no thread of the warp passes": (
        """    %8 = le b1 %5, %7
    %9 = load f32 %1, %7, %8
    store %0, %7, %9, %8
""",
        [0, 0],
    ),
    "a mask of lanes": (
        """    %8 = mul i64 %7, %2
    %9 = ramp i64x4 %8 (1)
    %10 = splat i64x4 %3
    %11 = lt b1x4 %9, %10
    %12 = load f32x4 %1, %8, %11
    store %0, %8, %12, %11
    %13 = ramp i64x4 %8 (8)
    %14 = lt b1x4 %13, %10
    %15 = load f32x4 %1, %8, %14
    store %6, %8, %15
""",
        None,
    ),
    "a condition": (
        """    %8 = lt b1 %7, %3
    %9 = if %8
      %10 = load f32 %1, %7
      store %6, %7, %10
    endif %9
""",
        [3, 1],
    ),
    "a carry": (
        """    %8 = loop serial 0..3 carry %7
      %9 = carry i64 %8 (0)
      %10 = mul i64 %9, %2
      %11 = load f32 %1, %10
      %12 = add i64 %9, %5
      store %0, %9, %11
    %13 = end %8 carry %12
""",
        [16, 4],
    ),
    "copies": (
        """    %8 = mul i64 %7, %2
    %9 = lt b1 %7, %3
    copy %6, %8, %1, %8 (4)
    copy %6, %8, %1, %8, %9 (4)
    commit
    wait (0)
    barrier
    %10 = load f32 %6, %7
    store %0, %7, %10
""",
        [16, 4, 10, 4, 1, 4],
    ),
}


@pytest.mark.parametrize("name", SORTS)
def test_sorts_of_accesses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, wanted = SORTS[name]
    program = parse_linear(HEAD + body + "  %90 = end %7\n")
    found = assert_counted(program, monkeypatch)
    assert wanted is None or found == wanted


KERNELS: dict[str, Callable[[], Tensor]] = {
    "transpose": lambda: moved(memory(96, 64).T),
    "transpose odd": lambda: moved(memory(71, 93).T),
    "pad": lambda: memory(50, 60).pad(((3, 5), (7, 2))),
    "column sums": lambda: memory(256, 96).sum(0),
    "row sums": lambda: memory(40, 700).sum(1),
    "softmax": lambda: memory(24, 333).softmax(1),
    "cumsum": lambda: memory(16, 512).cumsum(1),
    "product": lambda: memory(64, 96) @ memory(96, 128),
    "product bf16": lambda: (
        memory(64, 96, dtype=dtypes.bfloat16) @ memory(96, 128, dtype=dtypes.bfloat16)
    ),
    "pooling": lambda: memory(4, 3, 20, 20).max_pool2d((2, 2)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in programs(KERNELS[name](), TARGETS[target]()):
        if math.prod(block_size(program)) > 1:
            with monkeypatch.context() as patch:
                assert_counted(program, patch)


def test_fragments_and_copies_are_among_the_kernels() -> None:
    """A product by tensor cores has them, and none of them is taken for something data decides."""
    (program,) = programs(KERNELS["product bf16"](), TARGETS["nv"]())
    assert {"copy", "fragment", "mma"} <= {inst.op for inst in program.body}
    assert all(one.moved for one in warp_accesses(program))
