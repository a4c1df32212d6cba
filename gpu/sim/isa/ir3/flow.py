"""Branches, the stack of those that wait, predication, ends: control functions of a wave.

Lanes that part ways wait at places; the lowest go first. A jump beyond a place where others wait
makes the jumping lanes wait too, and those are next. Lanes meet where an instruction is marked
(jp), and nowhere else: who would have to go on without has been lost. How many places they may wait
at is what BRANCHSTACK allows (Mesa 25.0, src/freedreno/ir3/ir3_reconvergence.c).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.isa import frames, jumps, layout
from gpu.sim.isa.ir3 import wave as own
from gpu.sim.isa.ir3.wave import Ir3Wave
from gpu.sim.isa.native import Make
from gpu.sim.isa.values import Emitter, Value

Condition = Callable[[Emitter, Ir3Wave], str]


def _wave(e: Emitter) -> Ir3Wave:
    assert isinstance(e.wave, Ir3Wave)
    return e.wave


def _pcs(e: Emitter) -> tuple[str, Value]:
    """(the address of the places where lanes wait, those)."""
    pointer = frames.place(e, _wave(e).pcs)
    kind = e.type("i32")
    return pointer, e.value("i32", f"load {kind}, ptr {pointer}, align {e.wave.row}")


def _store_pcs(e: Emitter, pointer: str, places: Value) -> None:
    e.lines.append(f"store {e.type('i32')} {places.text}, ptr {pointer}, align {e.wave.row}")


def _lowest(e: Emitter, places: Value) -> str:
    kind, name = e.type("i32"), f"@llvm.vector.reduce.umin.v{e.lanes}i32"
    e.declarations.add(f"declare i32 {name}({kind})")
    return e.raw(f"call i32 {name}({kind} {places.text})")


def _take(e: Emitter, joining: bool) -> str:
    """The lanes at the lowest place become active, or join those that are; gives the place."""
    pointer, places = _pcs(e)
    low = _lowest(e, places)
    here = places.eq(frames.splat(e, "i32", low))
    rest = here.select(-1, places)
    _store_pcs(e, pointer, rest)
    frames.set_header(e, layout.LOWEST, "i32", _lowest(e, rest))
    mask = frames.mask_of(e, here)
    if joining:
        mask = e.raw(f"or {e.wave.mask} {mask}, {frames.active_lanes(e)}")
    frames.store_mask(e, frames.place(e, e.wave.exec), mask)
    return low


def _choose(e: Emitter) -> None:
    """`ptr choose(ptr %w)`: the lanes that go next, by their record; null where none waits."""
    waits = e.raw(f"icmp eq i32 {frames.header(e, layout.LOWEST)}, -1")
    e.lines += [f"br i1 {waits}, label %nobody, label %some", "nobody:", "ret ptr null", "some:"]
    low = _take(e, joining=False)
    address = e.raw(
        f"add i64 {frames.header(e, own.CODE, 'i64')}, {e.raw(f'zext i32 {low} to i64')}"
    )
    e.lines.append(f"ret ptr {e.raw(f'inttoptr i64 {address} to ptr')}")


def _park(e: Emitter) -> None:
    """`void park(ptr %w, mask %lanes, i32 %place)`: makes lanes wait."""
    pointer, places = _pcs(e)
    lanes = frames.mask_value(e, "%lanes")
    _store_pcs(e, pointer, lanes.select(frames.splat(e, "i32", "%place"), places))
    e.lines.append("ret void")


def _depth(e: Emitter) -> None:
    """`i1 deep(ptr %w)`: whether lanes wait at more places than they may."""
    _, places = _pcs(e)
    limit = frames.header(e, own.BRANCHES)
    e.lines += ["br label %entry", "entry:", "br label %loop", "loop:"]
    kind = e.type("i32")
    e.lines.append(f"%left = phi {kind} [ {places.text}, %entry ], [ %next, %more ]")
    e.lines.append("%count = phi i32 [ 0, %entry ], [ %one, %more ]")
    low = _lowest(e, Value(e, "i32", "%left"))
    empty = e.raw(f"icmp eq i32 {low}, -1")
    e.lines += [f"br i1 {empty}, label %done, label %more", "more:"]
    e.lines.append("%one = add i32 %count, 1")
    rest = (
        Value(e, "i32", "%left")
        .eq(frames.splat(e, "i32", low))
        .select(-1, Value(e, "i32", "%left"))
    )
    e.lines += [f"%next = or {kind} {rest.text}, zeroinitializer", "br label %loop", "done:"]
    e.lines.append(f"ret i1 {e.raw(f'icmp ugt i32 %count, {limit}')}")


def _helpers(wave: Ir3Wave) -> tuple[str, set[str]]:
    """What the control functions call, and the intrinsics of that."""
    declarations: set[str] = set()
    texts = []
    for head, build in (
        ("ptr @choose(ptr %w)", _choose),
        (f"void @park(ptr %w, {wave.mask} %lanes, i32 %place)", _park),
        ("i1 @deep(ptr %w)", _depth),
    ):
        e = Emitter(wave.lanes, wave)
        build(e)
        declarations |= e.declarations
        texts.append(f"define internal {head} noinline {{\n" + "\n".join(e.lines) + "\n}\n")
    return "\n".join(texts), declarations


def _module(name: str, build: Callable[[Emitter], None], wave: Ir3Wave) -> str:
    text, declarations = _helpers(wave)
    e = Emitter(wave.lanes, wave)
    e.declarations |= declarations
    build(e)
    return text + frames.module([(name, e)])


def _trap(e: Emitter, bad: str, why: int, record: str = "%o") -> None:
    """Stops the wave at a record where something is so."""
    trap, well = e.labels("trap", "well")
    e.lines += [f"br i1 {bad}, label %{trap}, label %{well}", f"{trap}:"]
    frames.set_header(e, own.WHY, "i32", str(why))
    frames.stop(e, layout.TRAP, record)
    e.lines.append(f"{well}:")


def _resume(e: Emitter) -> None:
    """Goes on with the lanes that wait at the lowest place, which must be one to meet at."""
    record = e.raw("call ptr @choose(ptr %w)")
    function = e.raw(f"load i64, ptr {record}, align 8")
    lost = e.raw(f"icmp ne i64 {function}, {frames.header(e, own.JOIN, 'i64')}")
    _trap(e, lost, own.NO_JOIN, record)
    jumps.pay(e, record)


def _park_lanes(e: Emitter, lanes: str, place: str) -> None:
    e.lines.append(f"call void @park(ptr %w, {e.wave.mask} {lanes}, i32 {place})")


def _go_to(e: Emitter) -> None:
    """All active lanes go to the record's target."""
    place = frames.field(e, layout.AUX)
    lowest = frames.header(e, layout.LOWEST)
    behind = e.raw(f"icmp ugt i32 {place}, {lowest}")
    wait, straight = e.labels("wait", "straight")
    e.lines += [f"br i1 {behind}, label %{wait}, label %{straight}", f"{straight}:"]
    jumps.pay(e, frames.field(e, layout.TARGET, "ptr"))
    e.lines.append(f"{wait}:")
    _park_lanes(e, frames.active_lanes(e), place)
    _trap(e, e.raw("call i1 @deep(ptr %w)"), own.TOO_DEEP)
    _resume(e)


def _branch(taken_of: Condition) -> Callable[[Emitter], None]:
    """Lanes of a condition go to the target, the others on."""

    def build(e: Emitter) -> None:
        kind, active = e.wave.mask, frames.active_lanes(e)
        taken = e.raw(f"and {kind} {taken_of(e, _wave(e))}, {active}")
        none = e.raw(f"icmp eq {kind} {taken}, 0")
        e.lines += [f"br i1 {none}, label %fallen, label %some", "fallen:"]
        frames.next_record(e)
        e.lines.append("some:")
        every = e.raw(f"icmp eq {kind} {taken}, {active}")
        e.lines += [f"br i1 {every}, label %all, label %split", "all:"]
        _go_to(e)
        e.lines.append("split:")
        _park_lanes(e, taken, frames.field(e, layout.AUX))
        _park_lanes(
            e,
            e.raw(f"xor {kind} {active}, {taken}"),
            jumps.own_place(e, own.CODE, layout.RECORD.size),
        )
        _store_lowest(e)
        record = e.raw("call ptr @choose(ptr %w)")
        _trap(e, e.raw("call i1 @deep(ptr %w)"), own.TOO_DEEP)
        jumps.pay(e, record)

    return build


def _store_lowest(e: Emitter) -> None:
    """LOWEST says that somebody waits; `choose` finds out where."""
    frames.set_header(e, layout.LOWEST, "i32", "0")


def _predicate(e: Emitter, slot: str, inverted: bool) -> str:
    mask = frames.load_mask(e, frames.row(e, slot))
    return e.raw(f"xor {e.wave.mask} {mask}, -1") if inverted else mask


def _one(inverted: bool) -> Condition:
    return lambda e, wave: _predicate(e, "a", inverted)


def _two(operator: str, first: bool, second: bool) -> Condition:
    def build(e: Emitter, wave: Ir3Wave) -> str:
        masks = _predicate(e, "a", first), _predicate(e, "b", second)
        return e.raw(f"{operator} {wave.mask} {masks[0]}, {masks[1]}")

    return build


def _whole(every: bool, inverted: bool) -> Condition:
    """bany and ball: all lanes go where any, or all, of them say so."""

    def build(e: Emitter, wave: Ir3Wave) -> str:
        kind, active = wave.mask, frames.active_lanes(e)
        mask = e.raw(f"and {kind} {_predicate(e, 'a', inverted)}, {active}")
        wanted = f"icmp eq {kind} {mask}, {active}" if every else f"icmp ne {kind} {mask}, 0"
        return e.raw(f"select i1 {e.raw(wanted)}, {kind} -1, {kind} 0")

    return build


def _all_but_one(e: Emitter, wave: Ir3Wave) -> str:
    """getone: the lowest lane stays."""
    active = frames.active_lanes(e)
    return e.raw(f"and {wave.mask} {active}, {e.raw(f'sub {wave.mask} {active}, 1')}")


def _join(e: Emitter) -> None:
    """Takes along the lanes that wait here."""
    meet = e.raw(f"icmp eq i32 {jumps.own_place(e, own.CODE)}, {frames.header(e, layout.LOWEST)}")
    e.lines += [f"br i1 {meet}, label %merge, label %alone", "alone:"]
    frames.next_record(e)
    e.lines.append("merge:")
    _take(e, joining=True)
    frames.next_record(e)


def _end(e: Emitter) -> None:
    """The active lanes end."""
    alone = e.raw(f"icmp eq i32 {frames.header(e, layout.LOWEST)}, -1")
    e.lines += [f"br i1 {alone}, label %over, label %others", "over:"]
    frames.stop(e, layout.END, "%o")
    e.lines.append("others:")
    _resume(e)


def _copy_mask(target: str, source: str) -> Callable[[Emitter], None]:
    """EXEC to where it is saved, or back."""

    def build(e: Emitter) -> None:
        wave = _wave(e)
        mask = frames.load_mask(e, frames.place(e, getattr(wave, source)))
        frames.store_mask(e, frames.place(e, getattr(wave, target)), mask)
        frames.next_record(e)

    return build


def _predicated(inverted: bool) -> Callable[[Emitter], None]:
    """Of the saved lanes those are active whose predicate holds, or does not."""

    def build(e: Emitter) -> None:
        wave = _wave(e)
        saved = frames.load_mask(e, frames.place(e, wave.saved))
        chosen = e.raw(f"and {wave.mask} {_predicate(e, 'a', inverted)}, {saved}")
        frames.store_mask(e, frames.place(e, wave.exec), chosen)
        frames.next_record(e)

    return build


_BUILDERS: Final[dict[str, Callable[[Emitter], None]]] = {
    "jump": _go_to,
    "join": _join,
    "finish": _end,
    "save_exec": _copy_mask("saved", "exec"),
    "restore_exec": _copy_mask("exec", "saved"),
    "predt": _predicated(False),
    "predf": _predicated(True),
    "getone": _branch(_all_but_one),
    **{f"br_{i:d}": _branch(_one(i)) for i in (False, True)},
    **{f"bany_{i:d}": _branch(_whole(False, i)) for i in (False, True)},
    **{f"ball_{i:d}": _branch(_whole(True, i)) for i in (False, True)},
    **{
        f"{name}_{i:d}{j:d}": _branch(_two(operator, i, j))
        for name, operator in (("brao", "or"), ("braa", "and"))
        for i in (False, True)
        for j in (False, True)
    },
}


def maker(name: str, wave: Ir3Wave) -> tuple[str, Make]:
    """(the native function's name, what writes its module) of a control function."""
    function = f"ir3_{name}"
    return function, partial(_module, function, _BUILDERS[name], wave)
