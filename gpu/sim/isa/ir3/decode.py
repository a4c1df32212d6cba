"""Words of 64 bits to instructions of Adreno 6xx.

Encodings: Mesa 25.0, src/freedreno/isa/ir3-cat0.xml to ir3-cat7.xml, those of `gen` 600 to 699.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpu.core.errors import FormatError
from gpu.sim.isa.ir3 import decode_memory
from gpu.sim.isa.ir3.operands import (
    ADDRESS,
    HALF_TYPES,
    TYPES,
    Bad,
    Operand,
    destination,
    short_source,
    signed,
    source,
)
from gpu.sim.isa.ir3.operands import field as bits

SIZE: Final = 8
"""Bytes of an instruction."""
CONDITIONS: Final = ("lt", "le", "gt", "ge", "eq", "ne")
ROUNDINGS: Final = ("", "(even)", "(pos_infinity)", "(neg_infinity)")
_FLOW: Final = {
    # (opcode, its high bit)
    (0, 0): "nop", (6, 0): "end", (4, 0): "ret", (7, 0): "emit", (8, 0): "cut", (9, 0): "chmask",
    (10, 0): "chsh", (11, 0): "flow_rev", (8, 1): "shpe", (13, 1): "predt", (14, 1): "predf",
    (15, 1): "prede",
}  # fmt: skip
_JUMPS: Final = {(2, 0): "jump", (3, 0): "call", (0, 1): "bkt", (5, 1): "getone", (7, 1): "shps"}
_BRANCHES: Final = ("br", "brao", "braa", "brac", "bany", "ball")
_ALU: Final = {
    0: "add.f", 1: "min.f", 2: "max.f", 3: "mul.f", 4: "sign.f", 5: "cmps.f", 6: "absneg.f",
    7: "cmpv.f", 9: "floor.f", 10: "ceil.f", 11: "rndne.f", 12: "rndaz.f", 13: "trunc.f",
    16: "add.u", 17: "add.s", 18: "sub.u", 19: "sub.s", 20: "cmps.u", 21: "cmps.s", 22: "min.u",
    23: "min.s", 24: "max.u", 25: "max.s", 26: "absneg.s", 28: "and.b", 29: "or.b", 30: "not.b",
    31: "xor.b", 33: "cmpv.u", 34: "cmpv.s", 48: "mul.u24", 49: "mul.s24", 50: "mull.u",
    51: "bfrev.b", 52: "clz.s", 53: "clz.b", 54: "shl.b", 55: "shr.b", 56: "ashr.b", 58: "mgen.b",
    59: "getbit.b", 60: "setrm", 61: "cbits.b", 62: "shb", 63: "msad",
}  # fmt: skip
_INPUT: Final = 57
_UNARY: Final = frozenset(
    {
        *("sign.f", "absneg.f", "floor.f", "ceil.f", "rndne.f", "rndaz.f", "trunc.f", "absneg.s"),
        *("not.b", "bfrev.b", "clz.s", "clz.b", "setrm", "cbits.b"),
    }
)
_THREE: Final = (
    *("mad.u16", "madsh.u16", "mad.s16", "madsh.m16", "mad.u24", "mad.s24", "mad.f16", "mad.f32"),
    *("sel.b16", "sel.b32", "sel.s16", "sel.s32", "sel.f16", "sel.f32", "sad.s16", "sad.s32"),
)
_THREE_OF_HALVES: Final = frozenset(
    ("mad.u16", "mad.s16", "mad.f16", "sel.b16", "sel.s16", "sel.f16", "sad.s16")
)
_THREE_BITS: Final = {8: "shrm", 9: "shlm", 10: "shrg", 11: "shlg", 12: "andg"}
_SPECIAL: Final = {
    0: "rcp", 1: "rsq", 2: "log2", 3: "exp2", 4: "sin", 5: "cos", 6: "sqrt", 9: "hrsq",
    10: "hlog2", 11: "hexp2",
}  # fmt: skip
_SIGNS: Final = (".unsigned", ".mixed")
_PACKS: Final = (".low", ".high")


class UnknownInstruction(FormatError):
    """A word that is no instruction.

    Attributes:
        word: its 64 bits.
    """

    def __init__(self, message: str, word: int):
        super().__init__(message)
        self.word = word


@dataclass(slots=True)
class Instruction:
    """A decoded instruction.

    Attributes:
        word: its 64 bits.
        category: 0 to 7.
        name: what it does, without types and conditions.
        dsts, srcs: what it writes and reads, in the order of the text.
        suffix: what the text has behind the name.
        sy, ss, jp, eq, ul, ei, sat: its flags.
        repeat: how often it is done again, with other registers; nop: cycles that it waits behind.
        rounding: of a move, one of `ROUNDINGS`.
        immediate: what it has beside its operands: a distance in instructions, a count, an offset.
        types: of what it moves: source and destination, or of memory.
        condition: of a comparison.
        fields: others, by name.
        tail: the text behind the name where it is not made of operands alone.
    """

    word: int
    category: int
    name: str
    dsts: list[Operand] = field(default_factory=list)
    srcs: list[Operand] = field(default_factory=list)
    suffix: str = ""
    sy: bool = False
    ss: bool = False
    jp: bool = False
    eq: bool = False
    ul: bool = False
    ei: bool = False
    sat: bool = False
    repeat: int = 0
    nop: int = 0
    rounding: str = ""
    immediate: int = 0
    types: tuple[str, ...] = ()
    condition: str = ""
    fields: dict[str, int] = field(default_factory=dict)
    tail: str | None = None


def decode(word: int, slot: int = 0) -> Instruction:
    """The instruction of a word; `slot` is its number in the code, for the message.

    Raises UnknownInstruction.
    """
    category = word >> 61
    found = Instruction(word, category, "", sy=bool(word >> 60 & 1), jp=bool(word >> 59 & 1))
    if category < 5 or category == 7:
        found.ss = bool(word >> 44 & 1)
    if 1 <= category <= 4:
        found.ul = bool(word >> 45 & 1)
    try:
        _CATEGORIES[category](word, found)
    except Bad as error:
        raise UnknownInstruction(
            f"slot {slot}: {word:#018x} is no instruction of Adreno 6xx: {error}", word
        ) from None
    return found


def _zero(word: int, low: int, high: int) -> None:
    if bits(word, low, high):
        raise Bad(f"bits {low} to {high} are not zero")


def _flow(word: int, found: Instruction) -> None:
    opcode = (bits(word, 55, 58), word >> 49 & 1)
    found.eq = bool(word >> 48 & 1)
    found.immediate = signed(bits(word, 0, 31), 32)
    conditions = [(word >> 52 & 1, bits(word, 53, 54)), (word >> 45 & 1, bits(word, 46, 47))]
    target = f"#{found.immediate}"
    if opcode in _FLOW:
        for low, high in ((37, 39), (45, 47), (52, 54)):
            _zero(word, low, high)
        found.name, found.repeat = _FLOW[opcode], bits(word, 40, 42)
    elif opcode in _JUMPS:
        found.name, found.eq, found.tail = _JUMPS[opcode], False, target
    elif opcode == (4, 1):
        found.name, found.suffix = "getlast", f".w{2 << bits(word, 52, 54)}"
        found.eq, found.tail = False, target
    elif opcode == (5, 0):
        for low, high in ((32, 39), (45, 47)):
            _zero(word, low, high)
        found.name = "kill"
        _conditions(found, conditions[:1], "")
    elif opcode == (1, 0) and (kind := bits(word, 37, 39)) < 6:
        found.name = _BRANCHES[kind]
        if found.name == "brac":
            found.suffix, found.tail = f".{bits(word, 32, 36)}", target
        else:
            count = 2 if found.name in ("brao", "braa") else 1
            _conditions(found, conditions[:count], f", {target}")
    else:
        raise Bad(f"opcode {opcode[0]} of category 0")


def _conditions(found: Instruction, conditions: list[tuple[int, int]], behind: str) -> None:
    """Components of p0, each of which may be inverted."""
    texts = [f"{'!' * inverted}p0.{'xyzw'[number]}" for inverted, number in conditions]
    for n, (inverted, number) in enumerate(conditions, 1):
        found.fields |= {f"inverted{n}": inverted, f"component{n}": number}
    found.tail = ", ".join(texts) + behind


def _move(word: int, found: Instruction) -> None:
    if word >> 42 & 1:
        raise Bad("bit 42 is set")
    opcode = bits(word, 57, 58)
    target, kind = TYPES[bits(word, 46, 48)], TYPES[bits(word, 50, 52)]
    found.rounding = ROUNDINGS[bits(word, 55, 56)]
    found.types = (kind, target)
    if opcode == 2:
        _several(word, found, _is_half(kind), _is_half(target))
    elif opcode == 3:
        _zero(word, 0, 31)
        if bits(word, 46, 48) != 3 or bits(word, 50, 54) != 3 or word >> 43 & 1:
            raise Bad("movmsk of another type")
        found.name, found.suffix = "movmsk", f".w{32 * (bits(word, 40, 41) + 1)}"
        found.fields["words"] = bits(word, 40, 41) + 1
        found.rounding = ""
        found.dsts = [_moved_to(word, False)]
    elif opcode == 0:
        _one_move(word, found)
    else:
        raise Bad(f"opcode {opcode} of category 1")


def _is_half(kind: str) -> bool:
    """Type 7 is half too: of moves it is s8."""
    return kind in HALF_TYPES or kind == "u8_32"


def _moved_to(word: int, half: bool) -> Operand:
    number = bits(word, 32, 39)
    return Operand("rel_gpr" if word >> 49 & 1 else "gpr", number, half)


def _one_move(word: int, found: Instruction) -> None:
    kind, target = found.types
    found.repeat, repeats = bits(word, 40, 41), bool(word >> 43 & 1)
    form, half = bits(word, 53, 54), _is_half(kind)
    if form == 2:
        made = Operand("imm", bits(word, 0, 31), half, repeats=repeats)
    elif form == 1:
        _zero(word, 11, 31)
        made = Operand("const", bits(word, 0, 10), half, repeats=repeats)
    elif form == 3:
        raise Bad("form 3 of a move's source")
    elif word >> 11 & 1:
        _zero(word, 12, 31)
        name = "rel_const" if word >> 10 & 1 else "rel_gpr"
        made = Operand(name, signed(bits(word, 0, 9), 10), half, repeats=repeats)
    else:
        _zero(word, 8, 9)
        _zero(word, 11, 22 if word >> 31 & 1 else 31)
        if word >> 30 & 1:
            _zero(word, 23, 29)
        last = bool(word >> 10 & 1)
        made = Operand("gpr", bits(word, 0, 7), half, repeats=repeats, last=last)
    found.srcs, found.dsts = [made], [_moved_to(word, _is_half(target))]
    number = bits(word, 32, 39)
    if form == 0 and word >> 31 & 1:
        found.name, found.suffix = "movs", f".{kind}{target}"
        by_address = Operand("gpr", ADDRESS << 2)
        found.srcs.append(by_address if word >> 30 & 1 else Operand("imm", bits(word, 23, 29)))
        return
    addresses = {(0xF4, "s16"): "mova", (0xF5, "u16"): "mova1"}
    if kind == target and (number, kind) in addresses:
        found.name = addresses[number, kind]
    else:
        found.name = "mov" if kind == target else "cov"
        found.suffix = f".{kind}{target}"


def _several(word: int, found: Instruction, half: bool, half_to: bool) -> None:
    """swz, gat and sct: moves that read all before they write."""
    form = bits(word, 40, 41)
    if word >> 43 & 1 or word >> 49 & 1 or bits(word, 53, 54) or form == 3:
        raise Bad("a form of several moves")
    bytes_ = [bits(word, 8 * n, 8 * n + 7) for n in range(4)]
    first = bits(word, 32, 39)
    sources, targets = {
        0: (bytes_[:2], [first, bytes_[2]]),
        1: (bytes_, [first]),
        2: (bytes_[:1], [first, *bytes_[1:]]),
    }[form]
    if form == 0:
        _zero(word, 24, 31)
    found.name = ("swz", "gat", "sct")[form]
    found.suffix = "." + "".join(found.types)
    found.srcs = [Operand("gpr", number, half) for number in sources]
    found.dsts = [Operand("gpr", number, half_to) for number in targets]


def _repetition(word: int, found: Instruction, second: int) -> tuple[bool, bool]:
    """Whether the first two sources repeat; without repetitions their bits are cycles to wait."""
    first, other = word >> 43 & 1, word >> second & 1
    found.repeat = bits(word, 40, 41)
    if not found.repeat:
        found.nop = first | other << 1
        return False, False
    return bool(first), bool(other)


def _alu(word: int, found: Instruction) -> None:
    opcode, full = bits(word, 53, 58), bool(word >> 52 & 1)
    found.sat, found.ei = bool(word >> 42 & 1), bool(word >> 47 & 1)
    first, second = _repetition(word, found, 51)
    if opcode == _INPUT:
        found.name = "flat.b" if word >> 50 & 1 else "bary.f"
    elif opcode in _ALU:
        found.name = _ALU[opcode]
    else:
        raise Bad(f"opcode {opcode} of category 2")
    found.dsts = [destination(bits(word, 32, 39), full == bool(word >> 46 & 1))]
    found.srcs = [source(bits(word, 0, 15), full, first)]
    if found.name not in _UNARY:
        found.srcs.append(source(bits(word, 16, 31), full, second))
    found.fields["full"] = int(full)
    if found.name.startswith("cmp"):
        if (condition := bits(word, 48, 50)) >= len(CONDITIONS):
            raise Bad(f"condition {condition}")
        found.condition = CONDITIONS[condition]
        found.suffix = f".{found.condition}"


def _three(word: int, found: Instruction) -> None:
    opcode, other = bits(word, 55, 58), bool(word >> 13 & 1)
    first, second = _repetition(word, found, 15)
    third = bool(word >> 29 & 1) and (not found.nop or (other and opcode == 13))
    convert = bool(word >> 46 & 1)
    negated = [bool(word >> bit & 1) for bit in (14, 30, 31)]
    found.sat = bool(word >> 42 & 1)
    half_to: bool
    if not other:
        found.name = _THREE[opcode]
        full, immediates = found.name not in _THREE_OF_HALVES, (False, False)
        half_to = full == convert
    elif opcode in _THREE_BITS:
        found.name, full, found.sat = _THREE_BITS[opcode], found.sat, False
        immediates, half_to = (True, True), full == convert
    elif opcode == 13:
        found.name, full, immediates = "dp4acc" if convert else "dp2acc", True, (False, False)
        found.suffix, found.repeat = _SIGNS[negated[0]] + _PACKS[negated[1]], 0
        found.fields |= {"signed": int(negated[0]), "high": int(negated[1])}
        negated[:2] = False, False
        half_to = False
    elif opcode == 14:
        found.name = "wmm.accu" if found.sat else "wmm"
        full, immediates, half_to = negated[2], (False, True), not convert
        found.sat, negated[2] = False, False
    else:
        raise Bad(f"opcode {opcode} of category 3")
    found.fields["full"] = int(full)
    operands = (
        short_source(bits(word, 0, 12), full, immediates[0]),
        Operand("gpr", bits(word, 47, 54), not full),
        short_source(bits(word, 16, 28), full, immediates[1]),
    )
    marks = zip(operands, negated, (first, second, third), strict=True)
    found.srcs = [each._replace(negated=sign, repeats=r) for each, sign, r in marks]
    found.dsts = [destination(bits(word, 32, 39), half_to)]


def _special(word: int, found: Instruction) -> None:
    opcode, full = bits(word, 53, 58), bool(word >> 52 & 1)
    if opcode not in _SPECIAL:
        raise Bad(f"opcode {opcode} of category 4")
    found.name, found.sat = _SPECIAL[opcode], bool(word >> 42 & 1)
    found.repeat = bits(word, 40, 41)
    found.fields["full"] = int(full)
    found.dsts = [destination(bits(word, 32, 39), full == bool(word >> 46 & 1))]
    found.srcs = [source(bits(word, 0, 15), full, bool(word >> 43 & 1))]


def _texture(word: int, found: Instruction) -> None:
    raise Bad("those of category 5, of textures, are not decoded")


def _memory(word: int, found: Instruction) -> None:
    made = decode_memory.decode(word)
    found.name, found.suffix, found.tail = made.name, made.suffix, made.tail
    found.dsts, found.srcs = list(made.dsts), list(made.srcs)
    found.types, found.immediate, found.fields = made.types, made.offset, dict(made.fields)


def _wait(word: int, found: Instruction) -> None:
    opcode, kind = bits(word, 55, 58), word >> 51 & 1
    if opcode in (0, 1):
        if not word >> 49 & 1:
            raise Bad("bit 49 of a barrier is not set")
        found.name = "bar" if opcode == 0 else "fence"
        letters = zip("glrw", (54, 53, 52, 51), strict=True)
        found.suffix = "".join(f".{letter}" for letter, bit in letters if word >> bit & 1)
    elif opcode == 2:
        found.name, found.suffix = "sleep", (".s", ".l")[kind]
    elif opcode == 3:
        found.name = "icinv"
    elif opcode in (4, 5, 6):
        _zero(word, 52, 52)
        found.name = ("dccln", "dcinv", "dcflu")[opcode - 4]
        found.suffix = (".shr", ".all")[kind]
    else:
        raise Bad(f"opcode {opcode} of category 7")


_CATEGORIES: Final = (_flow, _move, _alu, _three, _special, _texture, _memory, _wait)
