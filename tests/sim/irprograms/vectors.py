"""Operations that only vectors have."""

from __future__ import annotations

from typing import Final

from sim.irprograms import scalars
from sim.irprograms.body import FLOATS, VECTORS, Body, count, element, mangled, width

_REDUCTIONS: Final = ("add", "mul", "and", "or", "xor", "smin", "smax", "umin", "umax")


def step(body: Body) -> None:
    """An operation on vectors, of any kind."""
    kind = body.random.choice(VECTORS)
    families = [_elements, _shuffle, _cast, _reduce, _build, scalars.compare, scalars.select]
    if element(kind) in FLOATS:
        families += [scalars.arithmetic, scalars.arithmetic, scalars.unary]
    else:
        families += [scalars.integer, scalars.integer, scalars.bit_trick]
    body.random.choice(families)(body, kind)


def _position(body: Body, kind: str) -> str:
    """Of an element: a constant, or computed."""
    size = count(kind)
    if body.random.random() < 0.7:
        return str(body.random.randrange(size))
    return body.index(size if size & (size - 1) == 0 else 2)


def _elements(body: Body, kind: str) -> None:
    """An element put in, and one taken out."""
    inner = element(kind)
    into, place = body.value(kind), _position(body, kind)
    item = body.value(inner)
    made = body.emit(kind, f"insertelement {kind} {into}, {inner} {item}, i32 {place}")
    body.emit(inner, f"extractelement {kind} {made}, i32 {_position(body, kind)}")


def _shuffle(body: Body, kind: str) -> None:
    """Elements of two vectors, in some order."""
    size = count(kind)
    choices = ", ".join(f"i32 {body.random.randrange(2 * size)}" for _ in range(size))
    x, y = body.value(kind), body.pick(kind)
    body.emit(kind, f"shufflevector {kind} {x}, {kind} {y}, <{size} x i32> <{choices}>")


def _build(body: Body, kind: str) -> None:
    """A vector of scalars."""
    made = body.constant(kind)
    for place in range(count(kind)):
        inner = element(kind)
        value = body.value(inner)
        made = body.emit(kind, f"insertelement {kind} {made}, {inner} {value}, i32 {place}")


def _cast(body: Body, kind: str) -> None:
    """From a vector of as many elements of another type."""
    others = [k for k in VECTORS if count(k) == count(kind) and k != kind]
    source = body.random.choice(others)
    value = body.value(source)
    floats = (element(source) in FLOATS, element(kind) in FLOATS)
    wider = width(kind) > width(source)
    if floats == (False, False):
        name = body.random.choice(("zext", "sext")) if wider else "trunc"
        body.emit(kind, f"{name} {source} {value} to {kind}")
    elif floats == (True, True):
        if not wider and "fptrunc.signed" in body.avoid:
            value = body.call(source, f"fabs.{mangled(source)}", (source, value))
        body.emit(kind, f"{'fpext' if wider else 'fptrunc'} {source} {value} to {kind}")
    elif floats == (False, True):
        name = body.random.choice(("sitofp", "uitofp"))
        body.emit(kind, f"{name} {source} {value} to {kind}")
    else:
        name = body.random.choice(("fptosi", "fptoui"))
        full = f"{name}.sat.{mangled(kind)}.{mangled(source)}"
        body.call(kind, full, (source, value))


def _reduce(body: Body, kind: str) -> None:
    """All elements of a vector as one; floats are added from the first to the last."""
    inner, value = element(kind), body.value(kind)
    if inner not in FLOATS:
        name = body.random.choice(_REDUCTIONS)
        body.call(inner, f"vector.reduce.{name}.{mangled(kind)}", (kind, value))
        return
    name = body.random.choice(("fadd", "fmul"))
    full = f"vector.reduce.{name}.{mangled(kind)}"
    body.call(inner, full, (inner, body.pick(inner)), (kind, value))


def flags(body: Body) -> None:
    """A vector of flags as one flag."""
    known = [k for k in body.pool if element(k) == "i1" and count(k) > 1 and body.pool[k]]
    if known:
        kind = body.random.choice(known)
        name = body.random.choice(("or", "and", "xor"))
        body.call("i1", f"vector.reduce.{name}.{mangled(kind)}", (kind, body.value(kind)))
