"""Category 6: loads, stores, atomics, and what the lanes of a wave tell each other.

Encodings: Mesa 25.0, src/freedreno/isa/ir3-cat6.xml, those of `gen` 600 to 699.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.sim.isa.ir3.operands import HALF_TYPES, TYPES, Bad, Operand, field, register, signed

_ATOMICS: Final = (
    *("add", "sub", "xchg", "inc", "dec", "cmpxchg", "min", "max", "and", "or", "xor"),
)
_ATOMIC_TYPES: Final = (*TYPES[:6], "u64", TYPES[7])
_MODES: Final = ("imm", "uniform", "nonuniform")
_SHUFFLES: Final = {1: "xor", 2: "up", 3: "down", 6: "rup", 7: "rdown"}
_BINDLESS: Final = {
    # opcode in bits 14 to 19 -> name
    0b011110: "ldc", 0b100100: "getspid", 0b100101: "getwid", 0b100110: "getfiberid",
    0b001111: "resinfo.b", 0b001100: "resbase", 0b011101: "stib.b", 0b000110: "ldib.b",
    **{0b010000 + n: f"atomic.b.{name}" for n, name in enumerate(_ATOMICS) if n not in (3, 4)},
}  # fmt: skip


class Memory(NamedTuple):
    """An instruction of category 6.

    Attributes:
        name, suffix, tail: its text.
        dsts, srcs: registers, and immediates in their place.
        types: of memory.
        offset: bytes that are added to an address.
        fields: others: `count` of registers, `dimensions`, `buffer`, `mode`, `base`, `size`.
    """

    name: str
    suffix: str
    tail: str
    dsts: tuple[Operand, ...] = ()
    srcs: tuple[Operand, ...] = ()
    types: tuple[str, ...] = ()
    offset: int = 0
    fields: dict[str, int] = {}


def decode(word: int) -> Memory:
    """The instruction of a word. Raises Bad."""
    opcode = field(word, 54, 58)
    if opcode in _PLAIN:
        return _PLAIN[opcode](word)
    if 16 <= opcode < 16 + len(_ATOMICS) and _is_atomic(word):
        return _atomic(word, _ATOMICS[opcode - 16])
    if opcode == 27 and field(word, 52, 53) == 2:
        return _shuffle(word)
    if field(word, 20, 22) == 6 and field(word, 14, 19) in (0b011101, 0b000110):
        return _bindless(word)
    raise Bad(f"opcode {opcode} of category 6")


def _gpr(number: int, half: bool = False) -> Operand:
    return Operand("gpr", number, half)


def _kind(word: int) -> tuple[str, bool]:
    kind = TYPES[field(word, 49, 51)]
    return kind, kind in HALF_TYPES


def _offset(value: int) -> str:
    return f"{value:+d}" if value else ""


def _want(word: int, low: int, high: int, value: int) -> None:
    if field(word, low, high) != value:
        raise Bad(f"bits {low} to {high} of a memory instruction are not {value}")


def _global_load(word: int) -> Memory:
    """ldg, ldg.a and ldg.k; or one of those with descriptors, whose bit 0 decides."""
    if field(word, 52, 53) >= 2:
        return _bindless(word)
    if not word & 1:
        raise Bad("opcode 0 of category 6")
    kind, half = _kind(word)
    if field(word, 30, 31):
        raise Bad("a count of more than 7")
    if word >> 52 & 1:
        _want(word, 22, 22, 0)
        return _load_constants(word, kind)
    _want(word, 23, 23, 1)
    count, address, dst = field(word, 24, 26), field(word, 14, 21), field(word, 32, 39)
    head = f"{'h' * half}{register(dst)}, g[{_plain_register(address)}"
    if word >> 22 & 1:
        index = field(word, 1, 8)
        fields, text = _indexed(word, kind, index)
        fields["count"] = count
        srcs = (_gpr(address), _gpr(index))
        dsts = (_gpr(dst, half),)
        return Memory(
            "ldg.a", f".{kind}", f"{head}{text}], {count}", dsts, srcs, (kind,), 0, fields
        )
    offset = signed(field(word, 1, 13), 13)
    text = f"{head}{_offset(offset)}], {count}"
    operands = (_gpr(dst, half),), (_gpr(address),)
    return Memory("ldg", f".{kind}", text, *operands, (kind,), offset, {"count": count})


def _plain_register(number: int) -> str:
    """Without names for a0 and p0."""
    return f"r{number >> 2}.{'xyzw'[number & 3]}"


def _indexed(word: int, kind: str, index: int) -> tuple[dict[str, int], str]:
    """(fields, text) of an address with an index, which counts what lies in memory.

    The address is ``((index << shift) + further) << size``; of bytes nothing is shifted.
    """
    further, size = field(word, 9, 10), _log_size(kind)
    shift = field(word, 12, 13) if size else 0
    if word >> 11 & 1 and further and shift:
        raise Bad("bit 11 of an address with an index")
    name = register(index)
    if not further:
        text = f"+({name}<<{shift + size})" if size else f"+{name}"
    elif not size:
        text = f"+{name}+{further}"
    else:
        inner = f"({name}<<{shift})" if shift else name
        text = f"+(({inner}+{further})<<{size})"
    return {"shift": shift, "further": further, "size": size}, text


def _log_size(kind: str) -> int:
    """The logarithm of the bytes of a type in memory."""
    return {"8": 0, "8_32": 0, "16": 1, "32": 2}[kind[1:]]


def _load_constants(word: int, kind: str) -> Memory:
    count, address = field(word, 23, 26), field(word, 14, 21)
    offset = signed(field(word, 1, 13), 13)
    text = f"c[{_constant(word)}], g[{_plain_register(address)}{_offset(offset)}], {count}"
    return Memory("ldg.k", f".{kind}", text, (), (_gpr(address),), (kind,), offset)


def _constant(word: int) -> str:
    """Where constants are written: a number, or that behind a1.x."""
    number = field(word, 32, 39)
    if word >> 40 & 1:
        return f"a1.x+{number}" if number else "a1.x"
    return str(number)


def _global_store(word: int) -> Memory:
    """stg and stg.a."""
    kind, half = _kind(word)
    if field(word, 30, 31) or not word >> 23 & 1 or word >> 53 & 1:
        raise Bad("a form of stg")
    count, data, address = field(word, 24, 26), field(word, 1, 8), field(word, 41, 48)
    behind = f"], {'h' * half}{register(data)}, {count}"
    head = f"g[{_plain_register(address)}"
    if word >> 52 & 1:
        index = field(word, 32, 39)
        fields, text = _indexed(word, kind, index)
        fields["count"] = count
        srcs = (_gpr(address), _gpr(index), _gpr(data, half))
        return Memory("stg.a", f".{kind}", head + text + behind, (), srcs, (kind,), 0, fields)
    offset = _split_offset(word)
    text = head + _offset(offset) + behind
    plain = (_gpr(address), _gpr(data, half))
    return Memory("stg", f".{kind}", text, (), plain, (kind,), offset, {"count": count})


def _split_offset(word: int) -> int:
    return signed(field(word, 9, 13) << 8 | field(word, 32, 39), 13)


def _near_load(name: str, letter: str) -> Callable[[int], Memory]:
    """ldl, ldp and ldlw."""

    def build(word: int) -> Memory:
        kind, half = _kind(word)
        if not word & 1 or not word >> 23 & 1:
            raise Bad(f"a form of {name}")
        dst, address, count = field(word, 32, 39), field(word, 14, 21), field(word, 24, 31)
        offset = signed(field(word, 1, 13), 13)
        h = "h" * (half and name == "ldp")
        text = f"{h}{register(dst)}, {letter}[{register(address)}{_offset(offset)}], {count}"
        operands = (_gpr(dst, half),), (_gpr(address),)
        return Memory(name, f".{kind}", text, *operands, (kind,), offset, {"count": count})

    return build


def _near_store(name: str, letter: str) -> Callable[[int], Memory]:
    """stl, stp and stlw."""

    def build(word: int) -> Memory:
        kind, half = _kind(word)
        if not word >> 23 & 1 or not word >> 40 & 1 or (name == "stp" and word & 1):
            raise Bad(f"a form of {name}")
        data, address, count = field(word, 1, 8), field(word, 41, 48), field(word, 24, 31)
        offset = _split_offset(word)
        text = f"{letter}[{register(address)}{_offset(offset)}], {register(data)}, {count}"
        srcs = (_gpr(address), _gpr(data, half))
        return Memory(name, f".{kind}", text, (), srcs, (kind,), offset, {"count": count})

    return build


def _load_varying(word: int) -> Memory:
    kind, half = _kind(word)
    if word & 1 or field(word, 14, 21) or field(word, 22, 23) != 3:
        raise Bad("a form of ldlv")
    dst, offset, count = field(word, 32, 39), field(word, 1, 13), field(word, 24, 31)
    text = f"{register(dst)}, l[{offset}], {count}"
    return Memory("ldlv", f".{kind}", text, (_gpr(dst, half),), (), (kind,), offset)


def _store_constants(word: int) -> Memory:
    kind, half = _kind(word)
    if field(word, 14, 22) or not word >> 23 & 1:
        raise Bad("a form of stc")
    data, count = field(word, 1, 8), field(word, 24, 26)
    text = f"c[{_constant(word)}], {register(data)}, {count}"
    fields = {"count": count, "constant": field(word, 32, 39), "relative": word >> 40 & 1}
    return Memory("stc", f".{kind}", text, (), (_gpr(data, half),), (kind,), 0, fields)


def _resources(word: int) -> Memory:
    """resinfo of a buffer."""
    kind, half = _kind(word)
    if field(word, 14, 23) or word >> 40 & 1:
        raise Bad("a form of resinfo")
    dst, buffer = field(word, 32, 39), _either(field(word, 41, 48), word >> 53 & 1)
    text = f"{register(dst)}, g[{_either_text(buffer)}]"
    suffix = f".{kind}.{field(word, 9, 10) + 1}d"
    return Memory("resinfo", suffix, text, (_gpr(dst, half),), (buffer,), (kind,))


def _either(value: int, immediate: int) -> Operand:
    return Operand("imm" if immediate else "gpr", value)


def _either_text(operand: Operand) -> str:
    return str(operand.number) if operand.kind == "imm" else _plain_register(operand.number)


def _is_atomic(word: int) -> bool:
    return word & 1 == 1 and not field(word, 1, 8)


def _form(word: int, kind: str) -> str:
    """Typed or not, dimensions, type and how many of it."""
    typed = "typed" if word >> 11 & 1 else "untyped"
    return f".{typed}.{field(word, 9, 10) + 1}d.{kind}.{field(word, 12, 13) + 1}"


def _atomic(word: int, name: str) -> Memory:
    """On memory of a workgroup, or by an address."""
    _want(word, 41, 48, 0)
    _want(word, 53, 53, 0)
    everywhere = word >> 52 & 1
    kind = (_ATOMIC_TYPES if everywhere else TYPES)[field(word, 49, 51)]
    address = _either(field(word, 14, 21), word >> 22 & 1)
    data = _either(field(word, 24, 31), word >> 23 & 1)
    dst = field(word, 32, 39)
    place = _either_text(address) if everywhere else f"l[{_either_text(address)}]"
    suffix = _form(word, kind) + (".l", ".g")[everywhere]
    text = f"{register(dst)}, {place}, {_either_text(data)}"
    name = f"atomic.{'g.' * everywhere}{name}"
    return Memory(name, suffix, text, (_gpr(dst),), (address, data), (kind,))


def _shuffle(word: int) -> Memory:
    kind, half = _kind(word)
    if word & 1 or field(word, 9, 22) or (mode := field(word, 45, 47)) not in _SHUFFLES:
        raise Bad("a form of shfl")
    data, dst = _gpr(field(word, 1, 8), half), _gpr(field(word, 32, 39), half)
    by = _either(field(word, 24, 31), word >> 23 & 1)
    text = f"{dst.bare()}, {data.bare()}, {_either_text(by)}"
    suffix = f".{_SHUFFLES[mode]}.{kind}"
    return Memory("shfl", suffix, text, (dst,), (data, by), (kind,), 0, {"mode": mode})


def _bindless(word: int) -> Memory:
    """Those that name a buffer or image by its descriptor."""
    opcode = field(word, 14, 19)
    name = _BINDLESS.get(opcode)
    if name is None or word >> 40 & 1:
        raise Bad(f"opcode {opcode} of buffers")
    if (mode := field(word, 6, 7)) >= len(_MODES):
        raise Bad(f"mode {mode} of buffers")
    base = f".base{field(word, 1, 3)}" if word >> 8 & 1 else ""
    way = f".{_MODES[mode]}{base}"
    fields = {"mode": mode, "bindless": word >> 8 & 1, "base": field(word, 1, 3)}
    if name in ("stib.b", "ldib.b"):
        return _buffer_access(word, name, way, fields)
    if field(word, 4, 5) or field(word, 54, 58):
        raise Bad("a form of buffers")
    if name == "ldc":
        return _constant_load(word, way, fields)
    if name.startswith("get"):
        return _get(word, name)
    buffer = _either(field(word, 41, 48), mode == 0)
    dst = _gpr(field(word, 32, 39))
    if name.startswith("res"):
        if word & 1 or field(word, 20, 23) != 6 or not word >> 53 & 1:
            raise Bad(f"a form of {name}")
        kind = TYPES[field(word, 49, 51)]
        text = f"{register(dst.number)}, {_either_text(buffer)}"
        return Memory(name, _form(word, kind) + way, text, (dst,), (buffer,), (kind,), 0, fields)
    if field(word, 20, 23) != 6 or field(word, 52, 53) != 3:
        raise Bad(f"a form of {name}")
    kind = _ATOMIC_TYPES[field(word, 49, 51)]
    place = _gpr(field(word, 24, 31))
    text = f"{register(dst.number)}, {register(place.number)}, {_either_text(buffer)}"
    suffix = _form(word, kind) + way
    return Memory(name, suffix, text, (dst,), (dst, place, buffer), (kind,), 0, fields)


def _get(word: int, name: str) -> Memory:
    """Numbers of the wave, its lanes and its processor."""
    kind, half = _kind(word)
    _want(word, 0, 0, 0)
    _want(word, 22, 22, 1)
    _want(word, 53, 53, 1)
    if name == "getfiberid":
        _want(word, 23, 23, 1)
    dst = field(word, 32, 39)
    return Memory(name, f".{kind}", register(dst), (_gpr(dst, half),), (), (kind,))


def _constant_load(word: int, way: str, fields: dict[str, int]) -> Memory:
    """ldc, and ldc.k, which writes constants."""
    _want(word, 49, 50, 3)
    _want(word, 22, 22, 1)
    place = _either(field(word, 24, 31), word >> 23 & 1)
    buffer = _either(field(word, 41, 48), fields["mode"] == 0)
    texts = f"{_either_text(place)}, {_either_text(buffer)}"
    if field(word, 52, 53) == 3:
        size = field(word, 32, 39) + 1
        return Memory("ldc", f".{size}.k{way}", f"c[a1.x], {texts}", (), (place, buffer))
    _want(word, 52, 53, 2)
    count, offset = field(word, 12, 13) + 1, field(word, 9, 10)
    dst = field(word, 32, 39)
    suffix = f"{'.u' * (word >> 11 & 1)}.offset{offset}.{count}{way}"
    fields |= {"count": count, "offset": offset}
    text = f"{register(dst)}, {texts}"
    return Memory("ldc", suffix, text, (_gpr(dst),), (place, buffer), ("u32",), 0, fields)


def _buffer_access(word: int, name: str, way: str, fields: dict[str, int]) -> Memory:
    """stib.b and ldib.b."""
    kind, half = _kind(word)
    if (name == "stib.b" and word & 1) or field(word, 52, 53) != 2 or field(word, 20, 22) != 6:
        raise Bad(f"a form of {name}")
    offset = field(word, 4, 5) << 5 | field(word, 54, 58)
    if not word >> 23 & 1 and offset:
        raise Bad(f"an offset of {name} that is not there")
    first, place = _gpr(field(word, 32, 39), half), _gpr(field(word, 24, 31))
    buffer = _either(field(word, 41, 48), fields["mode"] == 0)
    fields |= {"count": field(word, 12, 13) + 1, "typed": word >> 11 & 1}
    text = f"{'h' * half}{register(first.number)}, {register(place.number)}"
    text += f"+{offset}" * bool(offset) + f", {_either_text(buffer)}"
    dsts = (first,) if name == "ldib.b" else ()
    srcs = (place, buffer) if dsts else (first, place, buffer)
    return Memory(name, _form(word, kind) + way, text, dsts, srcs, (kind,), offset, fields)


_PLAIN: Final[dict[int, Callable[[int], Memory]]] = {
    0: _global_load,
    1: _near_load("ldl", "l"),
    2: _near_load("ldp", "p"),
    3: _global_store,
    4: _near_store("stl", "l"),
    5: _near_store("stp", "p"),
    10: _near_load("ldlw", "l"),
    11: _near_store("stlw", "l"),
    15: _resources,
    28: _store_constants,
    31: _load_varying,
}
