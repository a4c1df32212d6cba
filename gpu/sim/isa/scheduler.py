"""The loop over the waves of a grid, in native code.

`run_grid` makes workgroups resident while there is room, and gives turns to resident waves at
random, under a seed. It comes back when its budget is used up, when the grid has ended or no wave
gets on, and with what a wave stopped for that only its instruction set knows (`gpu/sim/isa/grid.py`
sees to that).

The budget counts what ran: one for each branch that a wave takes, and one for each turn that ends
otherwise. At most 64 waves are resident, so sets of them are words with a bit for each.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.layout import WAVE32
from gpu.sim.isa.values import Emitter, Value
from gpu.sim.isa.waves import POISON

NAME: Final = "run_grid"
"""The function of the module."""
RESIDENT: Final = 64
"""Waves at a time; more than one workgroup where they fit, as groups may wait for each other."""
SLICE: Final = 1000
"""Taken branches after which another wave gets its turn."""
LOOK: Final = 8 * SLICE
"""Taken branches of a wave after which it is looked at, to see whether it goes round in circles."""

FIELDS: Final = (
    *("budget", "random", "wave", "instructions"),
    *("live", "waiting", "signalled", "passed", "kept", "circling", "closed", "endless", "free"),
    *("next", "groups", "waves_per_group", "asks"),
    *("waves", "wave_size", "row_size", "templates"),
    *("lds", "lds_stride", "lds_size"),
    *("scratch", "scratch_size"),
    *("ranges", "range_count", "offers", "ids", "id_count"),
    *("users", "user_values", "user_count"),
    *("place_row", "place_step"),
)
"""Words of the memory that `run_grid` is given (u64):

- budget: what is left of it; random: the generator's state, not 0; wave: the one that stopped last
- instructions: executed by the waves that have ended
- sets of resident waves: live: not ended; waiting: at a barrier; signalled: have come to one and
  gone on; passed: had done so when it opened, and have not waited since; kept: at one that the
  caller opens; circling: known to go round in circles; closed: have done so since others did
  anything; endless: can never end
- free: set of slots for workgroups; next, groups, waves_per_group: workgroups to come, all, size
- asks: whether each barrier is the caller's, also one that all threads wait for
- waves, wave_size, row_size: resident waves lie one behind the other; templates: address of
  addresses of what each wave of a workgroup begins as
- lds, lds_stride, lds_size: memory of workgroups, and how much of it a wave can reach
- scratch: address of an address for each resident wave, or 0; scratch_size: bytes to poison
- ranges, range_count: what addresses mean; offers: `Offer` rows of them, or 0
- ids, id_count: `ID` rows
- users, user_values, user_count: offset of rows that each hold a dword, those, and how many
- place_row, place_step: offset of a row that gets a wave's number among the resident ones, and how
  much one counts there; 0 for none
"""
ID_FIELDS: Final = 6
"""Words (u64) that tell how a row differs among workgroups: its offset, step, wrap, divisor,
modulus, scale. `number // step % wrap // divisor % modulus * scale` is added to what it holds."""

OFFER_FIELDS: Final = 3
"""Words (u64) of what is offered of a range: flags, where it is copied before it is first read as
data, and before it is first read by scalar loads."""

# What `run_grid` gives back beside statuses of waves.
SPENT: Final = 16
ENDED: Final = 17
STANDS: Final = 18
"""All waves that live wait at barriers, or are closed or endless."""
LOOKED: Final = 19
"""The wave has taken `LOOK` branches since the last time."""
SETTLE: Final = 20
"""The waves of a workgroup stand at barriers that only the caller knows."""


_RUN: Final = f"""
; Executes from a record on, under the rounding mode of the wave.
define internal i32 @run(ptr %w, ptr %o) noinline {{
  %host = getelementptr i8, ptr %w, i64 {layout.HOST_MXCSR}
  call void @llvm.x86.sse.stmxcsr(ptr %host)
  %own = getelementptr i8, ptr %w, i64 {layout.MXCSR32}
  call void @llvm.x86.sse.ldmxcsr(ptr %own)
  %target = load ptr, ptr %o
  %status = call i32 %target(ptr %w, ptr %o)
  call void @llvm.x86.sse.ldmxcsr(ptr %host)
  ret i32 %status
}}
declare i64 @llvm.cttz.i64(i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)
"""


def module() -> str:
    """`run_grid(grid)`, and what it calls."""
    start, take, run = Emitter(1), Emitter(1), Emitter(1)
    _start_group(start)
    _take_offer(take)
    _run_grid(run)
    intrinsics = "\n".join(sorted(start.declarations | take.declarations | run.declarations))
    starting, taking, running = ("\n".join(each.lines) for each in (start, take, run))
    return f"""{_RUN}{intrinsics}
define internal void @start_group(ptr %g, i64 %slot) noinline {{
{starting}
}}
define internal i1 @take_offer(ptr %g, ptr %w) noinline {{
{taking}
}}
define i32 @{NAME}(ptr %g) {{
{running}
}}
"""


def _get(e: Emitter, field: str) -> Value:
    place = e.raw(f"getelementptr i64, ptr %g, i64 {FIELDS.index(field)}")
    return e.value("i64", f"load i64, ptr {place}")


def _put(e: Emitter, field: str, value: Value) -> None:
    place = e.raw(f"getelementptr i64, ptr %g, i64 {FIELDS.index(field)}")
    e.lines.append(f"store i64 {value.text}, ptr {place}")


def _word(e: Emitter, base: Value | str, index: Value | int) -> Value:
    """A u64 of a table, by its address."""
    start = base if isinstance(base, str) else e.raw(f"inttoptr i64 {base.text} to ptr")
    number = index.text if isinstance(index, Value) else index
    place = e.raw(f"getelementptr i64, ptr {start}, i64 {number}")
    return e.value("i64", f"load i64, ptr {place}")


def _branch(e: Emitter, condition: Value, yes: str, no: str, then: str) -> None:
    """Goes one of two ways, and goes on writing with one of them."""
    e.lines += [f"br i1 {condition.text}, label %{yes}, label %{no}", f"{then}:"]


def _phi(e: Emitter, name: str, *ways: tuple[Value | str, str]) -> Value:
    """A value by the block that one comes from; the name is `name`, for what is not there yet."""
    pairs = ((way.text if isinstance(way, Value) else way, block) for way, block in ways)
    texts = ", ".join(f"[ {value}, %{block} ]" for value, block in pairs)
    e.lines.append(f"%{name} = phi i64 {texts}")
    return Value(e, "i64", f"%{name}")


def _name(e: Emitter, name: str, value: Value) -> None:
    """Makes a value known by a name, for a phi before it."""
    e.lines.append(f"%{name} = add {value.kind} {value.text}, 0")


def _poison(e: Emitter, address: Value, size: Value) -> None:
    place = e.raw(f"inttoptr i64 {address.text} to ptr")
    byte = f"i8 {POISON - 256}"
    e.lines.append(f"call void @llvm.memset.p0.i64(ptr {place}, {byte}, i64 {size.text}, i1 false)")


def _bit(e: Emitter, number: Value) -> Value:
    return e.const("i64", 1).shl(number)


def _members(e: Emitter, slot: Value) -> tuple[Value, Value]:
    """(the number of the first wave of a workgroup, the set of all)."""
    count = _get(e, "waves_per_group")
    first = slot * count
    return first, e.const("i64", -1).lshr(e.const("i64", 64) - count).shl(first)


def _start_group(e: Emitter) -> None:
    """Makes the next workgroup resident in a slot that is free."""
    e.lines.append("entry:")
    slot, group = Value(e, "i64", "%slot"), _get(e, "next")
    first, members = _members(e, slot)
    _put(e, "next", group + 1)
    _put(e, "free", _get(e, "free") & ~_bit(e, slot))
    _put(e, "live", _get(e, "live") | members)
    _put(e, "closed", e.const("i64", 0))
    for held in ("waiting", "signalled", "passed", "kept", "circling", "endless"):
        _put(e, held, _get(e, held) & ~members)
    lds = _get(e, "lds") + slot * _get(e, "lds_stride")
    _poison(e, lds, _get(e, "lds_size"))
    e.lines += ["br label %wave", "wave:"]
    index = _phi(e, "index", ("0", "entry"), ("%index.1", "made"))
    number, size = first + index, _get(e, "wave_size")
    e.lines.append(f"%w = inttoptr i64 {(_get(e, 'waves') + number * size).text} to ptr")
    template = e.raw(f"inttoptr i64 {_word(e, _get(e, 'templates'), index).text} to ptr")
    copied = f"ptr %w, ptr {template}, i64 {size.text}, i1 false"
    e.lines.append(f"call void @llvm.memcpy.p0.p0.i64({copied})")
    frames.set_header(e, layout.LDS, "i64", lds.text)
    frames.set_header(e, layout.GROUP, "i64", group.text)
    scratch = _get(e, "scratch")
    _branch(e, scratch.ne(0), "private", "users", "private")
    own = _word(e, scratch, number)
    frames.set_header(e, layout.SCRATCH, "i64", own.text)
    _poison(e, own, _get(e, "scratch_size"))
    e.lines += ["br label %users", "users:"]
    user = _phi(e, "user", ("0", "wave"), ("0", "private"), ("%user.1", "put.filled"))
    _branch(e, user.icmp("ult", _get(e, "user_count")), "put", "ids", "put")
    values = e.raw(f"inttoptr i64 {_get(e, 'user_values').text} to ptr")
    place = e.raw(f"getelementptr i32, ptr {values}, i64 {user.text}")
    offset = _get(e, "users") + user * _get(e, "row_size")
    row = e.raw(f"getelementptr i8, ptr %w, i64 {offset.text}")
    _fill_row(e, "put", row, e.value("i32", f"load i32, ptr {place}"))
    _name(e, "user.1", user + 1)
    e.lines += ["br label %users", "ids:"]
    which = _phi(e, "which", ("0", "users"), ("%which.1", "id.filled"))
    _branch(e, which.icmp("ult", _get(e, "id_count")), "id", "placed", "id")
    at = _get(e, "ids") + which * (8 * ID_FIELDS)
    offset, step, wrap, divisor, modulus, scale = (_word(e, at, n) for n in range(ID_FIELDS))
    value = group
    for operator, by in (("udiv", step), ("urem", wrap), ("udiv", divisor), ("urem", modulus)):
        value = e.value("i64", f"{operator} i64 {value.text}, {by.text}")
    row = e.raw(f"getelementptr i8, ptr %w, i64 {offset.text}")
    held_word = e.value("i32", f"load i32, ptr {row}") + (value * scale).to("i32")
    _fill_row(e, "id", row, held_word)
    _name(e, "which.1", which + 1)
    e.lines += ["br label %ids", "placed:"]
    offset = _get(e, "place_row")
    _branch(e, offset.ne(0), "place", "made", "place")
    row = e.raw(f"getelementptr i8, ptr %w, i64 {offset.text}")
    _fill_row(e, "place", row, (number * _get(e, "place_step")).to("i32"))
    e.lines += ["br label %made", "made:"]
    _name(e, "index.1", index + 1)
    more = Value(e, "i64", "%index.1").icmp("ult", _get(e, "waves_per_group"))
    _branch(e, more, "wave", "done", "done")
    e.lines.append("ret void")


def _fill_row(e: Emitter, block: str, row: str, word: Value) -> None:
    """Puts a dword into all lanes of a row, in blocks behind the named one."""
    lanes = f"<{WAVE32.lanes} x i32>"
    one = e.raw(f"insertelement {lanes} poison, i32 {word.text}, i64 0")
    zeros = f"<{WAVE32.lanes} x i32> zeroinitializer"
    splat = e.raw(f"shufflevector {lanes} {one}, {lanes} poison, {zeros}")
    e.lines += [f"br label %{block}.fill", f"{block}.fill:"]
    place = _phi(e, f"{block}.place", ("0", block), (f"%{block}.place.1", f"{block}.fill"))
    here = e.raw(f"getelementptr i8, ptr {row}, i64 {place.text}")
    e.lines.append(f"store {lanes} {splat}, ptr {here}, align 4")
    _name(e, f"{block}.place.1", place + WAVE32.row)
    more = Value(e, "i64", f"%{block}.place.1").icmp("ult", _get(e, "row_size"))
    _branch(e, more, f"{block}.fill", f"{block}.filled", f"{block}.filled")


def _take_offer(e: Emitter) -> None:
    """Whether what a wave has missed is offered: it is then allowed, and copied if it is read."""
    e.lines.append("entry:")
    address = Value(e, "i64", frames.header(e, layout.FAULT_ADDRESS, "i64"))
    size = Value(e, "i32", frames.header(e, layout.FAULT_SIZE)).to("i64")
    access = Value(e, "i32", frames.header(e, layout.FAULT_ACCESS)).to("i64") & 255
    offers, count = _get(e, "offers"), _get(e, "range_count")
    _branch(e, offers.ne(0), "loop", "none", "loop")
    index = _phi(e, "index", ("0", "entry"), ("%index.1", "next"))
    _branch(e, index.icmp("ult", count), "look", "none", "look")
    row, offer = _get(e, "ranges") + index * layout.RANGE.size, offers + index * (8 * OFFER_FIELDS)
    start, length, delta, flags = (_word(e, row, n) for n in range(4))
    offset, lacking = address - start, access & ~flags
    inside = offset.icmp("ule", length) & (offset + size).icmp("ule", length)
    fits = inside & lacking.ne(0) & (access & ~_word(e, offer, 0)).eq(0)
    _branch(e, fits, "give", "next", "next")
    _name(e, "index.1", index + 1)
    e.lines += ["br label %loop", "give:"]
    loads = layout.READ | layout.ATOMIC
    for word, kinds in enumerate((loads, layout.SCALAR), 1):
        copy, reads = _word(e, offer, word), (lacking & kinds).ne(0) & (flags & kinds).eq(0)
        _branch(e, reads & copy.ne(0), f"copy{word}", f"given{word}", f"copy{word}")
        to, here = (e.raw(f"inttoptr i64 {at.text} to ptr") for at in (copy, start + delta))
        copied = f"ptr {to}, ptr {here}, i64 {length.text}, i1 false"
        e.lines.append(f"call void @llvm.memcpy.p0.p0.i64({copied})")
        e.lines += [f"br label %given{word}", f"given{word}:"]
    place = e.raw(f"inttoptr i64 {(row + 24).text} to ptr")
    e.lines.append(f"store i64 {(flags | access).text}, ptr {place}")
    e.lines += ["ret i1 true", "none:", "ret i1 false"]


def _run_grid(e: Emitter) -> None:
    """The loop: workgroups while there is room, then a turn of a wave, and what comes of it."""
    e.lines += ["br label %loop", "loop:"]
    live, free, budget = (_get(e, field) for field in ("live", "free", "budget"))
    begun = _get(e, "next").icmp("uge", _get(e, "groups"))
    _branch(e, live.eq(0) & begun, "ended", "afford", "ended")
    e.lines += [f"ret i32 {ENDED}", "afford:"]
    _branch(e, budget.icmp("sgt", 0), "admit", "spent", "spent")
    e.lines += [f"ret i32 {SPENT}", "admit:"]
    _branch(e, free.ne(0) & ~begun, "begin", "choose", "begin")
    e.lines.append(f"call void @start_group(ptr %g, i64 {_lowest(e, free).text})")
    e.lines += ["br label %loop", "choose:"]
    waiting = _get(e, "waiting")
    ready = live & ~(waiting | _get(e, "closed") | _get(e, "endless"))
    _branch(e, ready.eq(0), "stands", "draw", "stands")
    e.lines += [f"ret i32 {STANDS}", "draw:"]
    number = _drawn(e, ready)
    status, left = _turn(e, number, budget)
    arrived = (waiting | _get(e, "signalled")) & ~_get(e, "endless")
    e.lines.append(
        f"switch i32 {status.text}, label %other [ i32 {layout.SLICE}, label %sliced"
        f" i32 {layout.BARRIER}, label %barrier i32 {layout.END}, label %end"
        f" i32 {layout.FAULT}, label %missed i32 {layout.SIGNAL}, label %signal"
        f" i32 {layout.AWAIT}, label %await ]"
    )
    signals = _half_barriers(e, number, waiting, arrived)
    e.lines.append("missed:")
    taken = e.value("i1", "call i1 @take_offer(ptr %g, ptr %w)")
    _branch(e, taken, "loop", "other", "other")
    e.lines += [f"ret i32 {status.text}", "sliced:"]
    _branch(e, left.eq(0), "looked", "lanes", "looked")
    frames.set_header(e, layout.LOOK, "i32", str(LOOK))
    e.lines += [f"ret i32 {LOOKED}", "lanes:"]
    together = Value(e, "i32", frames.header(e, layout.LOWEST)).eq(layout.NOBODY - (1 << 32))
    _branch(e, together, "loop", "other", "barrier")
    kind = _get(e, "asks").to("i32")
    for offset in (layout.BARRIER_ID, layout.BARRIER_THREADS, layout.BARRIER_KIND):
        kind = kind | Value(e, "i32", frames.header(e, offset))
    _branch(e, kind.eq(0), "wait", "other", "wait")
    waits = arrived | _bit(e, number)
    _put(e, "waiting", waiting | _bit(e, number))
    e.lines += ["br label %settle", "end:"]
    lives = live & ~_bit(e, number)
    _put(e, "live", lives)
    record = frames.header(e, layout.RESUME, "ptr")
    place = e.raw(f"getelementptr i8, ptr {record}, i64 {layout.PLACE}")
    passed = e.value("i32", f"load i32, ptr {place}").sext("i64") + 1
    executed = passed + Value(e, "i64", frames.header(e, layout.COUNT, "i64"))
    _put(e, "instructions", _get(e, "instructions") + executed)
    e.lines += ["br label %settle", "settle:"]
    live = _phi(e, "lives", (live, "wait"), (live, "signal"), (lives, "end"))
    arrived = _phi(e, "arrivals", (waits, "wait"), (signals, "signal"), (arrived, "end"))
    _settle(e, number, live, arrived)


def _half_barriers(e: Emitter, number: Value, waiting: Value, arrived: Value) -> Value:
    """Blocks of a wave that signals, and of one that awaits; who has come with the one."""
    e.lines.append("signal:")
    own = _bit(e, number)
    signals = arrived | own
    _put(e, "signalled", _get(e, "signalled") | own)
    e.lines += ["br label %settle", "await:"]
    own, passed = _bit(e, number), _get(e, "passed")
    _branch(e, (passed & own).ne(0), "pass", "hold", "pass")
    _put(e, "passed", passed & ~own)
    e.lines += ["br label %loop", "hold:"]
    _put(e, "waiting", waiting | own)
    _branch(e, (arrived & own).ne(0), "loop", "never", "never")
    _put(e, "endless", _get(e, "endless") | own)  # it waits for itself: it has not signalled
    e.lines.append("br label %loop")
    return signals


def _settle(e: Emitter, number: Value, live: Value, arrived: Value) -> None:
    """Whether a wave's workgroup has ended, or all of it that lives has come to a barrier."""
    slot = e.value("i64", f"udiv i64 {number.text}, {_get(e, 'waves_per_group').text}")
    members = _members(e, slot)[1]
    alive = live & members
    _branch(e, alive.eq(0), "vacate", "alive", "vacate")
    _put(e, "free", _get(e, "free") | _bit(e, slot))
    e.lines += ["br label %loop", "alive:"]
    _branch(e, (alive & ~arrived).eq(0), "open", "loop", "open")
    _branch(e, (_get(e, "kept") & alive).eq(0), "release", "ask", "ask")
    e.lines += [f"ret i32 {SETTLE}", "release:"]
    waiting = _get(e, "waiting")
    _put(e, "passed", _get(e, "passed") | alive & ~waiting)
    _put(e, "signalled", _get(e, "signalled") & ~members)
    _put(e, "waiting", waiting & ~members)
    e.lines.append("br label %loop")


def _lowest(e: Emitter, chosen: Value) -> Value:
    """The number of the lowest member of a set that is not empty."""
    return e.value("i64", f"call i64 @llvm.cttz.i64(i64 {chosen.text}, i1 true)")


def _drawn(e: Emitter, ready: Value) -> Value:
    """A member of a set. xorshift64*: Marsaglia, "Xorshift RNGs"; Vigna's multiplier."""
    state = _get(e, "random")
    state = state ^ state.lshr(12)
    state = state ^ state.shl(25)
    state = state ^ state.lshr(27)
    _put(e, "random", state)
    drawn = (state * 2685821657736338717).lshr(32)
    skipped = (drawn * ready.unary("ctpop")).lshr(32)
    e.lines += ["br label %pick", "pick:"]
    left = _phi(e, "left", (skipped, "draw"), ("%left.1", "drop"))
    chosen = _phi(e, "chosen", (ready, "draw"), ("%chosen.1", "drop"))
    _branch(e, left.eq(0), "turn", "drop", "drop")
    _name(e, "left.1", left - 1)
    _name(e, "chosen.1", chosen & (chosen - 1))
    e.lines += ["br label %pick", "turn:"]
    return _lowest(e, chosen)


def _turn(e: Emitter, number: Value, budget: Value) -> tuple[Value, Value]:
    """Runs a wave for a slice; (why it stopped, branches until it is looked at)."""
    _put(e, "wave", number)
    address = _get(e, "waves") + number * _get(e, "wave_size")
    e.lines.append(f"%w = inttoptr i64 {address.text} to ptr")
    frames.set_header(e, layout.RANGES, "i64", _get(e, "ranges").text)
    frames.set_header(e, layout.RANGE_COUNT, "i64", _get(e, "range_count").text)
    look = Value(e, "i32", frames.header(e, layout.LOOK))
    last = budget.umin(look.to("i64")).umin(SLICE).to("i32") - 1
    frames.set_header(e, layout.BUDGET, "i32", last.text)
    record = frames.header(e, layout.RESUME, "ptr")
    status = e.value("i32", f"call i32 @run(ptr %w, ptr {record})")
    branches = last - Value(e, "i32", frames.header(e, layout.BUDGET))
    left = look - branches
    frames.set_header(e, layout.LOOK, "i32", left.text)
    used = branches + status.ne(layout.SLICE).select(e.const("i32", 1), 0)
    _put(e, "budget", budget - used.to("i64"))
    circles = (_get(e, "circling") & _bit(e, number)).ne(0)
    _put(e, "closed", circles.select(_get(e, "closed"), 0))
    return status, left
