"""Loads, stores and atomics: of the inputs, of private arrays, of shared memory, of the output.

Shared memory is written by one lane an element, or by atomics whose order does not show, and read
by others behind a barrier alone.
"""

from __future__ import annotations

from typing import Final

from sim.irprograms.body import FLOATS, SCALARS, VECTORS, Body, width

LANES: Final = 64
"""Work-items of a workgroup; shared arrays have an element for each."""
PRIVATE: Final = 8
"""Elements of a private array."""
SITES: Final = 4
"""Places with atomics on global memory that a program has at most."""
SITE_WORDS: Final = 8
_INPUT_BYTES: Final = 1024
_COMMUTING: Final = ("add", "sub", "and", "or", "xor", "max", "min", "umax", "umin")
_OWN: Final = (*_COMMUTING, "xchg", "nand", "uinc_wrap", "udec_wrap")
_RECORD: Final = "{ i16, [3 x i8], i32, <2 x half> }"  # 12 bytes
_FIELDS: Final = (("i16", "0"), ("i8", "1, i32 2"), ("i32", "2"), ("<2 x half>", "3"))


def load(body: Body) -> None:
    """A load of an input at a computed place, with one of many forms of address."""
    place = f"%a{body.number()}"
    if body.random.random() < 0.2:
        kind, path = body.random.choice(_FIELDS)
        index = body.index(64)
        body.line(f"{place} = getelementptr {_RECORD}, INPUT %words, i32 {index}, i32 {path}")
        body.emit(kind, f"load {kind}, INPUT {place}, align {1 if kind == 'i8' else 2}")
        return
    kind = body.random.choice((*(k for k in SCALARS if k not in ("i24", "i48")), *VECTORS[:6]))
    size = 16 if kind == "<3 x i32>" else _bytes(kind)
    if size > 1 and body.random.random() < 0.15:  # at any byte
        index = body.index(512)
        body.line(f"{place} = getelementptr i8, INPUT %words, i32 {index}")
        body.emit(kind, f"load {kind}, INPUT {place}, align 1")
        return
    index = body.index(_INPUT_BYTES // size)
    if body.random.random() < 0.3:
        wide = f"%a{body.number()}"
        body.line(f"{wide} = zext i32 {index} to i64")
        body.line(f"{place} = getelementptr {kind}, INPUT %words, i64 {wide}")
    else:
        body.line(f"{place} = getelementptr {kind}, INPUT %words, i32 {index}")
    body.emit(kind, f"load {kind}, INPUT {place}, align {min(size, 8)}")


def _bytes(kind: str) -> int:
    lanes = int(kind[1]) if kind[0] == "<" else 1
    return width(kind) // 8 * lanes


def private(body: Body) -> None:
    """A private array: made, written and read at computed places."""
    if not body.arrays or (body.random.random() < 0.2 and len(body.arrays) < 2):
        kind = body.random.choice(("i32", "i32", "i64", "i16", "float", "i8"))
        name = f"%t{body.number()}"
        body.entry.append(f"  {name} = ALLOCA [{PRIVATE} x {kind}]")
        body.arrays.append((name, kind))
        for element in range(PRIVATE):
            _put(body, name, kind, str(element))
    name, kind = body.random.choice(body.arrays)
    _put(body, name, kind, body.index(PRIVATE))
    place = _at(body, name, kind, body.index(PRIVATE))
    body.emit(kind, f"load {kind}, PRIVATE {place}")


def _put(body: Body, name: str, kind: str, index: str) -> None:
    value = body.pick(kind)
    place = _at(body, name, kind, index)
    body.line(f"store {kind} {value}, PRIVATE {place}")


def _at(body: Body, name: str, kind: str, index: str) -> str:
    place = f"%a{body.number()}"
    body.line(f"{place} = getelementptr [{PRIVATE} x {kind}], PRIVATE {name}, i32 0, i32 {index}")
    return place


def count_globally(body: Body, site: int) -> None:
    """An atomic on global memory by which lanes meet; what it returns is not looked at."""
    kind = body.random.choice(("i32", "i64"))
    name = body.random.choice(_COMMUTING)
    value, index = body.pick(kind), body.index(SITE_WORDS)
    word, place = f"%a{body.number()}", f"%a{body.number()}"
    body.line(f"{word} = add i32 {index}, {site * SITE_WORDS}")
    body.line(f"{place} = getelementptr i64, GLOBAL %sums, i32 {word}")
    body.line(f'atomicrmw {name} GLOBAL {place}, {kind} {value} syncscope("agent") monotonic')


def own_atomic(body: Body, array: str, kind: str) -> None:
    """Atomics on the lane's own element, whose results are."""
    place = f"%a{body.number()}"
    body.line(f"{place} = getelementptr {kind}, SHARED {array}, i32 %lane")
    body.line(f"store {kind} {body.value(kind)}, SHARED {place}")
    scope = 'syncscope("workgroup") monotonic'
    value = body.pick(kind)
    if kind in FLOATS:
        body.emit(kind, f"atomicrmw fadd SHARED {place}, {kind} {value} {scope}")
    elif body.random.random() < 0.3:
        pair, old = f"%b{body.number()}", body.pick(kind)
        body.line(
            f"{pair} = cmpxchg SHARED {place}, {kind} {old}, {kind} {value} {scope} monotonic"
        )
        body.emit(kind, f"extractvalue {{{kind}, i1}} {pair}, 0")
        body.emit("i1", f"extractvalue {{{kind}, i1}} {pair}, 1")
    else:
        name = body.random.choice(_OWN)
        body.emit(kind, f"atomicrmw {name} SHARED {place}, {kind} {value} {scope}")
    body.emit(kind, f"load {kind}, SHARED {place}")


def spread(body: Body, array: str, kind: str) -> None:
    """Each lane writes one element of a shared array, a permutation of the lanes."""
    factor, start = body.random.randrange(1, LANES, 2), body.random.randrange(LANES)
    index, moved, place = (f"%a{body.number()}" for _ in range(3))
    body.line(f"{moved} = mul i32 %lane, {factor}")
    turned = f"%a{body.number()}"
    body.line(f"{turned} = xor i32 {moved}, {start}")
    body.line(f"{index} = and i32 {turned}, {LANES - 1}")
    body.line(f"{place} = getelementptr {kind}, SHARED {array}, i32 {index}")
    body.line(f"store {kind} {body.value(kind)}, SHARED {place}")


def gather(body: Body, array: str, kind: str) -> None:
    """A read of a shared array that was spread before the last barrier."""
    place = f"%a{body.number()}"
    body.line(f"{place} = getelementptr {kind}, SHARED {array}, i32 {body.index(LANES)}")
    body.emit(kind, f"load {kind}, SHARED {place}")


def meet(body: Body, array: str, kind: str, name: str) -> None:
    """An atomic on an element of a shared array that other lanes change in the same way."""
    place = f"%a{body.number()}"
    value = body.pick(kind)
    body.line(f"{place} = getelementptr {kind}, SHARED {array}, i32 {body.index(LANES)}")
    body.line(f'atomicrmw {name} SHARED {place}, {kind} {value} syncscope("workgroup") monotonic')


def meeting(body: Body) -> str:
    """An operation for `meet`."""
    return body.random.choice(_COMMUTING)


SHARED_KINDS: Final = ("i32", "i32", "i64", "float", "double", "half", "i8", "<2 x float>")
OWN_KINDS: Final = ("i32", "i32", "i64", "float")
