"""Jumps in native code that keep a wave's counts right: its instructions, and its budget."""

from __future__ import annotations

from gpu.sim.isa import frames, layout
from gpu.sim.isa.values import Emitter


def own_place(e: Emitter, code: int, further: int = 0) -> str:
    """The byte offset of this record in the program, whose address the header has at `code`."""
    here = e.raw("ptrtoint ptr %o to i64")
    offset = e.raw(f"sub i64 {here}, {frames.header(e, code, 'i64')}")
    moved = e.raw(f"add i64 {offset}, {further}") if further else offset
    return e.raw(f"trunc i64 {moved} to i32")


def count(e: Emitter, record: str, done: int = 1) -> None:
    """Keeps COUNT right for a jump to a record; ``done`` is whether this one's instruction is."""
    place = e.raw(f"getelementptr i8, ptr {record}, i64 {layout.PLACE}")
    there = e.raw(f"load i32, ptr {place}, align 4")
    by = e.raw(f"sub i32 {frames.field(e, layout.PLACE)}, {there}")
    add(e, e.raw(f"sext i32 {e.raw(f'add i32 {by}, {done}')} to i64"))


def add(e: Emitter, instructions: str) -> None:
    """Adds to COUNT."""
    total = e.raw(f"add i64 {frames.header(e, layout.COUNT, 'i64')}, {instructions}")
    frames.set_header(e, layout.COUNT, "i64", total)


def spend(e: Emitter, record: str) -> None:
    """Goes on with a record, a branch that costs one; stops there once the budget is used up."""
    left = e.raw(f"sub i32 {frames.header(e, layout.BUDGET)}, 1")
    frames.set_header(e, layout.BUDGET, "i32", left)
    over = e.raw(f"icmp slt i32 {left}, 0")
    slice_, go = e.labels("slice", "go")
    e.lines += [f"br i1 {over}, label %{slice_}, label %{go}", f"{slice_}:"]
    frames.stop(e, layout.SLICE, record)
    e.lines.append(f"{go}:")
    frames.jump(e, record)


def pay(e: Emitter, record: str) -> None:
    """Goes on with a record, and counts that."""
    count(e, record)
    spend(e, record)
