"""Rules of the linear IR for blocks of threads, checked while a program is walked in order.

See `gpu/compiler/ir/linear/__init__.py` for what they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gpu.compiler.ir.linear import MAX_THREAD_LOOPS, Inst, Limit, Program, block_size
from gpu.core.bits import is_power_of_two

_TOGETHER: Final = ("barrier", "commit", "wait", "fragment", "mma")
"""What all threads of a block do, or none."""


class Threads:
    """Which values may differ between the threads of a block, and where in the block we are."""

    def __init__(self, program: Program):
        self.program = program
        self.thread_loops = len(block_size(program))
        self.varying: set[Inst] = set()
        self.chained: set[Inst | None] = set()

    def broken_rule(self, inst: Inst, around: Sequence[Inst]) -> str | None:
        """The rule that `inst`, inside the loops and ifs `around`, breaks, or None."""
        if not self.thread_loops:
            return "a shuffle_xor stands inside thread loops" if inst.op == "shuffle_xor" else None
        if self._varies(inst):
            self.varying.add(inst)
        opened = [around_it for around_it in around if around_it.op == "loop"]
        inside = sum(loop.attr[0] == "thread" for loop in opened) == self.thread_loops
        if inst.op == "loop" and inst.attr[0] in ("grid", "thread"):
            return self._chain(inst, around)
        if inst.op == "local":
            return _placed(inst, inside)
        if inst.op in _TOGETHER:
            return self._uniform(inst.op, around, inside)
        if inst.op == "shuffle_xor":
            distance, warp = inst.attr
            broken = broken_shuffle(distance, warp, math.prod(block_size(self.program)))
            return broken or self._uniform(inst.op, around, inside)
        return (
            None
            if inside or self._has_no_effect(inst)
            else (f"outside of the thread loops a {inst.op} would run once for each thread")
        )

    def _varies(self, inst: Inst) -> bool:
        """Whether threads of a block may have different values of `inst`.

        Carries count as different always: they are in no condition that matters.
        """
        if inst.op == "loop":
            stop = inst.attr[2]
            limit_varies = isinstance(stop, Limit) and stop.value in self.varying
            return inst.attr[0] == "thread" or limit_varies
        if inst.op in ("carry", "result", "shuffle_xor", "fragment", "mma", "load_tile"):
            return True
        if inst.op == "load" and not self._reads_constants(inst):
            return True
        return any(arg in self.varying for arg in inst.args)

    def _reads_constants(self, load: Inst) -> bool:
        pointer = load.args[0]
        return pointer.op == "param" and not self.program.params[pointer.attr[0]].written

    def _has_no_effect(self, inst: Inst) -> bool:
        """Whether `inst` may stand between the grid loops and the thread loops."""
        if inst.op == "load":
            return self._reads_constants(inst)
        if inst.op == "end":
            return inst.attr[0].attr[0] in ("grid", "thread")
        return inst.op not in (
            "store",
            "store_tile",
            "copy",
            "loop",
            "if",
            "endif",
            "carry",
            "result",
        )

    def _chain(self, loop: Inst, around: Sequence[Inst]) -> str | None:
        """Grid loops, then thread loops, each the only one in the one around it."""
        kind, start, stop, step = loop.attr
        kinds = [opened.attr[0] if opened.op == "loop" else opened.op for opened in around]
        if any(k not in (("grid",) if kind == "grid" else ("grid", "thread")) for k in kinds):
            return f"a {kind} loop stands inside nothing but loops of the same block"
        innermost = around[-1] if around else None
        if innermost in self.chained:
            return "grid and thread loops form one chain, but this is the second one here"
        self.chained.add(innermost)
        if kind == "thread":
            if kinds.count("thread") >= MAX_THREAD_LOOPS:
                return f"a block has at most {MAX_THREAD_LOOPS} thread loops"
            if start != 0 or step != 1 or isinstance(stop, Limit) or stop < 1:
                return "a thread loop goes from 0 in steps of 1 to a number of threads"
        return None

    def _uniform(self, op: str, around: Sequence[Inst], inside: bool) -> str | None:
        """It is reached by all threads of a block or by none, equally often."""
        if not inside:
            return f"a {op} stands inside thread loops"
        for opened in around:
            if opened.op == "if" and opened.args[0] in self.varying:
                return f"a {op} inside an if whose condition differs between threads"
            serial = opened.op == "loop" and opened.attr[0] == "serial"
            if serial and opened in self.varying:
                return f"a {op} inside a loop that threads run differently often"
        return None


def broken_shuffle(distance: int, warp: int, threads: int) -> str | None:
    """The rule that a `shuffle_xor` breaks in a block of so many threads, or None.

    Thread and partner are in one warp because both numbers are powers of two, and there is a
    partner for each thread because the block is made of pairs.
    """
    if not (is_power_of_two(distance) and is_power_of_two(warp) and distance < warp):
        return f"threads {distance} apart are not in one warp of {warp}; powers of two are"
    if threads % (2 * distance):
        return f"of {threads} threads some have no partner {distance} apart"
    return None


def _placed(local: Inst, inside: bool) -> str | None:
    if local.attr[1] == "team" and inside:
        return "team memory belongs to a block, and is declared outside of its thread loops"
    if local.attr[1] == "private" and not inside:
        return "private memory belongs to a thread, and is declared inside of the thread loops"
    return None
