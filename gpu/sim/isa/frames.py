"""Native functions around expressions: how operands are read and results are written.

Every function is ``i32 f(ptr wave, ptr record)`` and ends by jumping to the next record's function
(threaded code). A function that stops the wave leaves the record to go on with in RESUME and
returns why. Vector results are written in the lanes that EXEC names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gpu.sim.isa import layout
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.values import Emitter, Value

Build = Callable[..., "Value | tuple[Value, ...]"]
Builder = Callable[[Emitter], None]

_SLOTS: Final = ("a", "b", "c", "f")
_ATTRIBUTES: Final = "nounwind"


class Operation(NamedTuple):
    """What an operation computes.

    Attributes:
        name: of the native function.
        results: types of its results; ``m`` is a lane mask in a scalar register.
        sources: types of its sources; the same, and ``scc`` for the condition bit.
        build: takes the sources as values and gives the results.
        is_scalar: it is done once for a wave, not for each lane.
    """

    name: str
    results: tuple[str, ...]
    sources: tuple[str, ...]
    build: Build
    is_scalar: bool = False

    @property
    def rounds_in_64(self) -> bool:
        """Whether the mode of 16- and 64-bit floats rules it, not that of 32-bit ones."""
        kinds = set(self.results) | set(self.sources)
        return bool(kinds & {"f64", "f16"})


def function(name: str, emitter: Emitter) -> str:
    """The text of a function whose body has been emitted."""
    body = "\n".join(emitter.lines)
    return f"define i32 @{name}(ptr %w, ptr %o) #0 {{\n{body}\n}}\n"


def module(functions: Sequence[tuple[str, Emitter]]) -> str:
    """A module of functions with the intrinsics that they call."""
    declarations = sorted({line for _, emitter in functions for line in emitter.declarations})
    texts = [function(name, emitter) for name, emitter in functions]
    return "\n".join([*declarations, *texts, f"attributes #0 = {{ {_ATTRIBUTES} }}"])


def joined(builders: Mapping[str, tuple[Builder, int]], wave: WaveLayout) -> str:
    """The module of functions by name: what writes each, and the lanes of its values."""
    functions = []
    for name, (build, lanes) in builders.items():
        emitter = Emitter(lanes, wave)
        build(emitter)
        functions.append((name, emitter))
    return module(functions)


def emit(operation: Operation, wave: WaveLayout) -> Emitter:
    """The function of an operation that only computes."""
    emitter = Emitter(1 if operation.is_scalar else wave.lanes, wave)
    slots = iter(_SLOTS)
    sources = [
        read_scc(emitter) if kind == "scc" else read(emitter, next(slots), kind)
        for kind in operation.sources
    ]
    built = operation.build(*sources)
    results = built if isinstance(built, tuple) else (built,)
    assert len(results) == len(operation.results), operation.name
    for slot, kind, result in zip(("d", "e"), operation.results, results, strict=False):
        if kind == "scc":
            continue
        write(emitter, slot, kind, result)
    if "scc" in operation.results:
        write_scc(emitter, results[operation.results.index("scc")])
    next_record(emitter)
    return emitter


def field(emitter: Emitter, offset: int, kind: str = "i32") -> str:
    """A field of the record."""
    place = emitter.raw(f"getelementptr i8, ptr %o, i64 {offset}")
    return emitter.raw(f"load {kind}, ptr {place}, align 4")


def immediate(emitter: Emitter) -> str:
    """The low word of the record's immediate."""
    return emitter.raw(f"trunc i64 {field(emitter, layout.IMMEDIATE, 'i64')} to i32")


def header(emitter: Emitter, offset: int, kind: str = "i32") -> str:
    """A field of the wave's header."""
    return emitter.raw(f"load {kind}, ptr {place(emitter, offset)}, align 4")


def place(emitter: Emitter, offset: int) -> str:
    """The address of a byte of the wave."""
    return emitter.raw(f"getelementptr i8, ptr %w, i64 {offset}")


def set_header(emitter: Emitter, offset: int, kind: str, value: str) -> None:
    """Writes a field of the wave's header."""
    emitter.lines.append(f"store {kind} {value}, ptr {place(emitter, offset)}, align 4")


def row(emitter: Emitter, slot: str) -> str:
    """The address of the row that an operand names."""
    offset = field(emitter, layout.OPERANDS[slot])
    wide = emitter.raw(f"sext i32 {offset} to i64")
    return emitter.raw(f"getelementptr i8, ptr %w, i64 {wide}")


def behind(emitter: Emitter, pointer: str, offset: int | None = None) -> str:
    """An address further on, by default the next row."""
    offset = emitter.wave.row if offset is None else offset
    return emitter.raw(f"getelementptr i8, ptr {pointer}, i64 {offset}")


def _load_row(emitter: Emitter, pointer: str) -> Value:
    align = emitter.wave.row if emitter.lanes > 1 else 4
    return emitter.value("i32", f"load {emitter.type('i32')}, ptr {pointer}, align {align}")


def read(emitter: Emitter, slot: str, kind: str) -> Value:
    """A source of a type; 64 bits are two rows, 16 bits the low half of one."""
    pointer = row(emitter, slot)
    if kind == "m":
        return mask_value(emitter, load_mask(emitter, pointer))
    low = _load_row(emitter, pointer)
    if kind in ("i64", "f64"):
        high = _load_row(emitter, behind(emitter, pointer))
        return join64(low, high).bits(kind)
    if kind in ("i16", "f16"):
        return low.to("i16").bits(kind)
    return low.bits(kind)


def join64(low: Value, high: Value) -> Value:
    """64 bits of two halves."""
    return low.to("i64") | high.to("i64").shl(32)


def mask_value(emitter: Emitter, mask: str) -> Value:
    """A lane mask as a bit for each lane."""
    kind = emitter.wave.mask
    if emitter.lanes == 1:
        return emitter.value("i1", f"trunc {kind} {mask} to i1")
    return emitter.value("i1", f"bitcast {kind} {mask} to {emitter.type('i1')}")


def mask_of(emitter: Emitter, value: Value) -> str:
    """A bit for each lane as a lane mask."""
    return emitter.raw(f"bitcast {emitter.type('i1')} {value.text} to {emitter.wave.mask}")


def load_mask(emitter: Emitter, pointer: str) -> str:
    """A lane mask from the scalar registers that hold it, a word in each."""
    kind = emitter.wave.mask
    mask = emitter.raw(f"load i32, ptr {pointer}, align 4")
    for number in range(1, emitter.wave.words):
        mask = mask if number > 1 else emitter.raw(f"zext i32 {mask} to {kind}")
        place = behind(emitter, pointer, number * emitter.wave.row)
        word = emitter.raw(f"load i32, ptr {place}, align 4")
        wide = emitter.raw(f"zext i32 {word} to {kind}")
        higher = emitter.raw(f"shl {kind} {wide}, {32 * number}")
        mask = emitter.raw(f"or {kind} {mask}, {higher}")
    return mask


def store_mask(emitter: Emitter, pointer: str, mask: str) -> None:
    """Writes a lane mask to the scalar registers that hold it."""
    kind = emitter.wave.mask
    for number in range(emitter.wave.words):
        word = mask
        if emitter.wave.words > 1:
            moved = emitter.raw(f"lshr {kind} {mask}, {32 * number}")
            word = emitter.raw(f"trunc {kind} {moved} to i32")
        broadcast(emitter, behind(emitter, pointer, number * emitter.wave.row), word)


def active_lanes(emitter: Emitter) -> str:
    """EXEC, the mask of active lanes."""
    return load_mask(emitter, place(emitter, emitter.wave.exec))


def exec_mask(emitter: Emitter) -> Value:
    """A bit for each lane: whether it is active."""
    return mask_value(emitter, active_lanes(emitter))


def first_lane(emitter: Emitter, mask: str) -> str:
    """The number of the lowest lane of a mask, as i32; of lanes past the last where it is empty."""
    kind = emitter.wave.mask
    emitter.declarations.add(f"declare {kind} @llvm.cttz.{kind}({kind}, i1)")
    lane = emitter.raw(f"call {kind} @llvm.cttz.{kind}({kind} {mask}, i1 false)")
    return lane if kind == "i32" else emitter.raw(f"trunc {kind} {lane} to i32")


def write(emitter: Emitter, slot: str, kind: str, value: Value) -> None:
    """Writes a result of a type."""
    pointer = row(emitter, slot)
    if kind == "m":
        write_mask(emitter, pointer, value)
        return
    plain = value.bits()
    if kind in ("i64", "f64"):
        store_row(emitter, pointer, plain.to("i32"))
        store_row(emitter, behind(emitter, pointer), plain.lshr(32).to("i32"))
    elif kind in ("i16", "f16"):
        wide = plain.to("i32")
        if emitter.lanes > 1:  # the upper half of a scalar register becomes zero
            wide = _load_row(emitter, pointer) & ~0xFFFF | wide
        store_row(emitter, pointer, wide)
    else:
        store_row(emitter, pointer, plain)


def store_row(emitter: Emitter, pointer: str, value: Value, masked: bool = True) -> None:
    """Writes a row in the active lanes; a scalar goes into all lanes of its row."""
    if emitter.lanes == 1:
        broadcast(emitter, pointer, value.text)
        return
    kind = emitter.type("i32")
    store = f", ptr {pointer}, align {emitter.wave.row}"
    if not masked:
        emitter.lines.append(f"store {kind} {value.text}{store}")
        return
    active = active_lanes(emitter)
    full, partial, done = emitter.labels("full", "partial", "done")
    is_full = emitter.raw(f"icmp eq {emitter.wave.mask} {active}, -1")
    emitter.lines += [f"br i1 {is_full}, label %{full}, label %{partial}", f"{full}:"]
    emitter.lines += [f"store {kind} {value.text}{store}", f"br label %{done}", f"{partial}:"]
    # Not a select: LLVM would make a masked store of it, which is slow on many processors.
    mask = mask_value(emitter, active).sext("i32")
    mixed = (value & mask) | (_load_row(emitter, pointer) & ~mask)
    emitter.lines += [f"store {kind} {mixed.text}{store}", f"br label %{done}", f"{done}:"]


def broadcast(emitter: Emitter, pointer: str, word: str) -> None:
    """Writes a word into all lanes of a row."""
    lanes, row = emitter.wave.lanes, emitter.wave.row
    kind = f"<{lanes} x i32>"
    single = emitter.raw(f"insertelement {kind} poison, i32 {word}, i64 0")
    spread = emitter.raw(
        f"shufflevector {kind} {single}, {kind} poison, <{lanes} x i32> zeroinitializer"
    )
    emitter.lines.append(f"store {kind} {spread}, ptr {pointer}, align {row}")


def write_mask(emitter: Emitter, pointer: str, value: Value) -> None:
    """Writes the bits of the active lanes, zeros for the others, to a scalar register."""
    kind = emitter.wave.mask
    mask = emitter.raw(f"and {kind} {mask_of(emitter, value)}, {active_lanes(emitter)}")
    store_mask(emitter, pointer, mask)


def read_scc(emitter: Emitter) -> Value:
    """The scalar condition bit."""
    return emitter.value("i1", f"trunc i32 {header(emitter, layout.SCC)} to i1")


def write_scc(emitter: Emitter, value: Value) -> None:
    """Sets the scalar condition bit."""
    assert value.kind == "i1" and emitter.lanes == 1
    set_header(emitter, layout.SCC, "i32", emitter.raw(f"zext i1 {value.text} to i32"))


def mode_bit(emitter: Emitter, mask: int) -> Value:
    """Whether a bit of the MODE register is set, the same for all lanes."""
    word = header(emitter, layout.MODE)
    masked = emitter.raw(f"and i32 {word}, {mask}")
    bit = emitter.raw(f"icmp ne i32 {masked}, 0")
    if emitter.lanes == 1:
        return Value(emitter, "i1", bit)
    return splat(emitter, "i1", bit)


def splat(emitter: Emitter, kind: str, scalar: str) -> Value:
    """A scalar in all lanes."""
    vector = emitter.type(kind)
    single = emitter.raw(f"insertelement {vector} poison, {kind} {scalar}, i64 0")
    zeros = f"<{emitter.lanes} x i32> zeroinitializer"
    return emitter.value(kind, f"shufflevector {vector} {single}, {vector} poison, {zeros}")


def any_lane(emitter: Emitter, condition: Value) -> str:
    """Whether it holds in any lane, active or not."""
    if emitter.lanes == 1:
        return condition.text
    bits, name = emitter.type("i1"), f"@llvm.vector.reduce.or.v{emitter.lanes}i1"
    emitter.declarations.add(f"declare i1 {name}({bits})")
    return emitter.raw(f"call i1 {name}({bits} {condition.text})")


def next_record(emitter: Emitter) -> None:
    """Goes on with the record behind this one."""
    jump(emitter, emitter.raw(f"getelementptr i8, ptr %o, i64 {layout.RECORD.size}"))


def jump(emitter: Emitter, record: str) -> None:
    """Goes on with a record."""
    target = emitter.raw(f"load ptr, ptr {record}, align 8")
    status = emitter.raw(f"musttail call i32 {target}(ptr %w, ptr {record})")
    emitter.lines.append(f"ret i32 {status}")


def stop(emitter: Emitter, status: int, resume: str) -> None:
    """Leaves the loop; `resume` is the record to go on with."""
    set_header(emitter, layout.RESUME, "ptr", resume)
    emitter.lines.append(f"ret i32 {status}")
