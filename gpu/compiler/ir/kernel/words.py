"""Words of neighbours: uint32s with several narrow elements each, the first one lowest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.core.dtype import dtypes

BITS: Final = {8: dtypes.uint8, 16: dtypes.uint16}


def word_of(elements: Sequence[K.Value]) -> K.Value:
    """The bits of elements of one dtype, of 8 or 16 bits, in a uint32."""
    bits = elements[0].dtype.bits
    word = None
    for number, element in enumerate(elements):
        wide = K.cast(K.bitcast(element, BITS[bits]), dtypes.uint32)
        if word is None:
            word = wide
        else:
            place = K.const(dtypes.uint32, bits * number)
            word = K.alu("or", word, K.alu("shl", wide, place))
    assert word is not None
    return word


def elements_of(word: K.Value) -> list[K.Value]:
    """The elements of which `word_of` made a value, as integers without a sign; else none."""
    found: list[K.Value] = []
    while word.kind == "alu" and word.attr == ("or",):
        word, placed = word.args
        found.append(placed)
    found = [word, *reversed(found)]
    bits = dtypes.uint32.bits // len(found)
    elements: list[K.Value] = []
    for number, placed in enumerate(found):
        wide = placed
        if number:
            place = K.const(dtypes.uint32, bits * number)
            if placed.attr != ("shl",) or placed.args[1] is not place:
                return []
            wide = placed.args[0]
        is_wide = wide.kind == "cast" and wide.dtype is dtypes.uint32
        if not is_wide or wide.args[0].dtype is not BITS.get(bits):
            return []
        elements.append(wide.args[0])
    return elements


class Neighbours(NamedTuple):
    """What a word is made of whose elements are neighbours in memory, converted alike.

    Attributes:
        load: its first element in memory.
        made: what that becomes, value by value.
        together: how many elements it has.
    """

    load: K.Value
    made: Sequence[K.Value]
    together: int


def neighbours(word: K.Value) -> Neighbours | None:
    """What a word of neighbours is made of, bits of it flipped or not; None for another value."""
    if word.attr == ("xor",) and word.args[1].kind == "const":
        word = word.args[0]
    chains = [_chain(element) for element in elements_of(word)]
    if len(chains) < 2 or not all(chains):
        return None
    load, *made = chains[0]
    kinds = [(value.kind, value.dtype) for value in made]
    buf, (*rows, at), mask = load.attr
    for number, (other, *others) in enumerate(chains):
        if [(value.kind, value.dtype) for value in others] != kinds:
            return None
        if other is not K.load(buf, (*rows, at + number), mask):
            return None
    return Neighbours(load, made, len(chains))


def _chain(value: K.Value) -> list[K.Value]:
    """A load and the conversions of it that make a value; none where that is something else."""
    chain = [value]
    while value.kind in ("cast", "bitcast"):
        value = value.args[0]
        chain.append(value)
    is_element = value.kind == "load" and bool(value.attr[1])
    return chain[::-1] if is_element else []
