"""Operations on scalars and, element by element, on vectors, whose results are defined.

Shifts are masked, divisors positive, conversions saturate, and a NaN's sign and payload, which
nobody promises, never become an integer.
"""

from __future__ import annotations

from typing import Final

from sim.irprograms.body import (
    FLOATS,
    INFINITY,
    INTEGERS,
    Body,
    count,
    element,
    mangled,
    vector,
    width,
)

_PLAIN: Final = ("add", "sub", "mul", "and", "or", "xor")
_SHIFTS: Final = ("shl", "lshr", "ashr")
_DIVISIONS: Final = ("udiv", "sdiv", "urem", "srem")
_TESTS: Final = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_FLOAT_TESTS: Final = (
    *("oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
    *("ueq", "ugt", "uge", "ult", "ule", "une", "uno"),
)
_TWO: Final = (
    *("smin", "smax", "umin", "umax", "uadd.sat", "usub.sat", "sadd.sat", "ssub.sat"),
    *("sshl.sat", "ushl.sat"),
)
_OVERFLOWS: Final = tuple(f"{s}{o}.with.overflow" for s in "su" for o in ("add", "sub", "mul"))
_ZEROS: Final = {"half": "0xH0000", "float": "0.0", "double": "0.0"}
_ROUNDINGS: Final = ("floor", "ceil", "trunc", "roundeven", "rint", "nearbyint", "round")


def integer(body: Body, kind: str) -> None:
    """Arithmetic, logic, a shift or a division."""
    divisions = () if count(kind) > 1 or f"div.{kind}" in body.avoid else _DIVISIONS
    name = body.random.choice((*_PLAIN, *_PLAIN, *_SHIFTS, *divisions))
    x, y = body.pick(kind), body.pick(kind)
    if name in _SHIFTS:
        y = _shift_amount(body, kind, y)
    elif name in _DIVISIONS:
        drop = body.random.choice((1, width(kind) // 2))
        half = body.emit(kind, f"lshr {kind} {y}, {_splat(kind, drop)}")
        y = body.emit(kind, f"or {kind} {half}, {_splat(kind, 1)}")
    body.emit(kind, f"{name} {kind} {x}, {y}")


def _splat(kind: str, value: int) -> str:
    if count(kind) == 1:
        return str(value)
    items = ", ".join([f"{element(kind)} {value}"] * count(kind))
    return f"<{items}>"


def _shift_amount(body: Body, kind: str, value: str) -> str:
    """Below the width: masked, or where that is no power of two a remainder."""
    bits = width(kind)
    if bits & (bits - 1):
        return body.emit(kind, f"urem {kind} {value}, {_splat(kind, bits)}")
    return body.emit(kind, f"and {kind} {value}, {_splat(kind, bits - 1)}")


def bit_trick(body: Body, kind: str) -> None:
    """An intrinsic on integers."""
    one = ["ctpop", "bitreverse", "ctlz", "cttz", "abs", "fshl", "fshr"]
    if width(kind) % 16 == 0:
        one.append("bswap")
    names = [name for name in (*_TWO, *one) if f"{name}.{mangled(kind)}" not in body.avoid]
    name = body.random.choice(names)
    x, y = (kind, body.pick(kind)), (kind, body.pick(kind))
    full = f"{name}.{mangled(kind)}"
    if name in ("sshl.sat", "ushl.sat"):
        body.call(kind, full, x, (kind, _shift_amount(body, kind, y[1])))
    elif name in _TWO:
        body.call(kind, full, x, y)
    elif name in ("ctlz", "cttz", "abs"):
        body.call(kind, full, x, ("i1", "false"))
    elif name in ("fshl", "fshr"):
        body.call(kind, full, x, y, (kind, body.pick(kind)))
    else:
        body.call(kind, full, x)


def overflow(body: Body, kind: str) -> None:
    """Arithmetic that tells of an overflow, or a comparison in three ways."""
    x, y = (kind, body.pick(kind)), (kind, body.pick(kind))
    if body.random.random() < 0.3:
        name = body.random.choice(("scmp", "ucmp"))
        body.call("i8", f"{name}.i8.{kind}", x, y)
        return
    name = body.random.choice(_OVERFLOWS)
    both = f"%b{body.number()}"
    text = body.call_text(f"{{{kind}, i1}}", f"{name}.{kind}", x, y)
    body.line(f"{both} = {text}")
    body.emit(kind, f"extractvalue {{{kind}, i1}} {both}, 0")
    body.emit("i1", f"extractvalue {{{kind}, i1}} {both}, 1")


def compare(body: Body, kind: str) -> None:
    """A comparison; of vectors, with the select that it is for."""
    tests = _FLOAT_TESTS if element(kind) in FLOATS else _TESTS
    word = "fcmp" if element(kind) in FLOATS else "icmp"
    test = body.random.choice(tests)
    flag = vector(count(kind), "i1")
    text = f"{word} {test} {kind} {body.pick(kind)}, {body.value(kind)}"
    found = body.emit(flag, text)
    if count(kind) > 1:
        body.emit(
            kind, f"select {flag} {found}, {kind} {body.pick(kind)}, {kind} {body.pick(kind)}"
        )


def select(body: Body, kind: str) -> None:
    """A choice by a flag; logic of flags."""
    if body.random.random() < 0.3:
        name = body.random.choice(("and", "or", "xor"))
        body.emit("i1", f"{name} i1 {body.value('i1')}, {body.pick('i1')}")
    flag = body.value("i1")
    body.emit(kind, f"select i1 {flag}, {kind} {body.pick(kind)}, {kind} {body.pick(kind)}")


def arithmetic(body: Body, kind: str) -> None:
    """Arithmetic of floats."""
    names = ["fadd", "fsub", "fmul", "fdiv", "fma", "copysign", "minimum", "maximum", "minnum"]
    name = body.random.choice([*names, "maxnum", "ldexp"])
    x, y, full = body.pick(kind), body.pick(kind), f"{name}.{mangled(kind)}"
    if full in body.avoid:
        name = "fadd"
    if name == "copysign":  # the sign of a NaN is as little promised as its payload
        body.call(kind, full, (kind, x), (kind, _ordered(body, kind, y)))
    elif name in ("minnum", "maxnum"):  # what of a signalling NaN, and which zero, is open
        x, y = _ordered(body, kind, x), _ordered(body, kind, y)
        found = body.call(kind, full, (kind, x), (kind, y))
        body.emit(kind, f"fadd {kind} {found}, {_float_splat(kind, _ZEROS[element(kind)])}")
        body.pool[kind].remove(found)
    elif name in ("minimum", "maximum"):
        body.call(kind, full, (kind, x), (kind, y))
    elif name == "fma":
        body.call(kind, full, (kind, x), (kind, y), (kind, body.pick(kind)))
    elif name == "ldexp" and count(kind) == 1:
        body.call(kind, f"{full}.i32", (kind, x), ("i32", body.pick("i32")))
    else:
        body.emit(kind, f"{'fadd' if name == 'ldexp' else name} {kind} {x}, {y}")


def _float_splat(kind: str, value: str) -> str:
    if count(kind) == 1:
        return value
    items = ", ".join([f"{element(kind)} {value}"] * count(kind))
    return f"<{items}>"


def _ordered(body: Body, kind: str, value: str) -> str:
    """The value, or infinity for NaN."""
    flag = vector(count(kind), "i1")
    number = body.emit(flag, f"fcmp ord {kind} {value}, {value}")
    other = _float_splat(kind, INFINITY[element(kind)])
    return body.emit(kind, f"select {flag} {number}, {kind} {value}, {kind} {other}")


def unary(body: Body, kind: str) -> None:
    """An operation on one float."""
    name = body.random.choice(("sqrt", "sqrt", "fabs", "fneg", "canonicalize", *_ROUNDINGS))
    x = body.value(kind)
    if name == "canonicalize" and kind not in ("float", "double"):
        name = "fabs"  # LLVM 22 selects no instruction on x86-64 for some
    if name == "fneg":
        body.emit(kind, f"fneg {kind} {x}")
    elif f"{name}.{mangled(kind)}" not in body.avoid:
        body.call(kind, f"{name}.{mangled(kind)}", (kind, x))


def classify(body: Body, kind: str) -> None:
    """Whether a float is of some classes; both kinds of NaN count as one."""
    mask = body.random.randrange(1 << 10) & ~3 | body.random.choice((0, 3))
    body.call("i1", f"is.fpclass.{mangled(kind)}", (kind, body.value(kind)), ("i32", str(mask)))


def to_integer(body: Body, kind: str) -> None:
    """An integer from an integer of another width, a float, or the bits of one."""
    chance = body.random.random()
    if chance < 0.5:
        source = body.random.choice([other for other in (*INTEGERS, "i1") if other != kind])
        wider = width(kind) > width(source)
        cast = body.random.choice(("zext", "sext")) if wider else "trunc"
        body.emit(kind, f"{cast} {source} {body.value(source)} to {kind}")
        return
    source = body.random.choice(FLOATS)
    if chance < 0.65 and width(source) == width(kind):
        value = _ordered(body, source, body.value(source))
        body.emit(kind, f"bitcast {source} {value} to {kind}")
        return
    name = body.random.choice(("fptosi", "fptoui"))
    value = body.value(source)
    body.call(kind, f"{name}.sat.{kind}.{mangled(source)}", (source, value))


def to_float(body: Body, kind: str) -> None:
    """A float from an integer, the bits of one, or a float of another width."""
    chance = body.random.random()
    if chance < 0.4:
        source = body.integer()
        name = body.random.choice(("sitofp", "uitofp"))
        body.emit(kind, f"{name} {source} {body.value(source)} to {kind}")
    elif chance < 0.55:
        source = f"i{width(kind)}"
        body.emit(kind, f"bitcast {source} {body.value(source)} to {kind}")
    else:
        source = body.random.choice([other for other in FLOATS if other != kind])
        value = body.value(source)
        if width(source) < width(kind):
            body.emit(kind, f"fpext {source} {value} to {kind}")
            return
        if "fptrunc.signed" in body.avoid:
            value = body.call(source, f"fabs.{mangled(source)}", (source, value))
        body.emit(kind, f"fptrunc {source} {value} to {kind}")
