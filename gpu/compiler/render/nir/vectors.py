"""Vectors in memory, for NIR that is made of scalars: words of 32 or 64 bits side by side.

Mesa makes accesses of up to 16 bytes of them (`nir_opt_load_store_vectorize`, whose callback for
NVIDIA's is in src/nouveau/compiler/nak_nir.c). It knows less well what to do with neighbours of one
or two bytes, so those share words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpu.compiler.ir.linear import Inst
from gpu.compiler.render.nir.emit import Emitter, Value
from gpu.core.dtype import DType, dtypes

WORD: Final = 32


def is_of_memory(inst: Inst) -> bool:
    """Whether a vector is what one access moves, or is made or taken apart for one."""
    if inst.op in ("load", "store"):
        return inst.args[1].lanes == 1
    return inst.op == "pack" or (inst.op == "splat" and inst.dtype is dtypes.bool)


def word_bits(dtype: DType, lanes: int) -> int:
    """Bits of the words that hold so many elements."""
    bits = 8 * dtype.itemsize
    return max(bits, min(bits * lanes, WORD))


def words_of(e: Emitter, elements: Sequence[Value], bits: int) -> Iterator[Value]:
    """Elements as words of so many bits, the first ones lowest."""
    own = elements[0].bits
    together = bits // own
    for first in range(0, len(elements), together):
        word = e.resize(elements[first], bits)
        for number in range(1, together):
            high = e.resize(elements[first + number], bits)
            word = e.alu("ior", word, e.shift("ishl", high, e.integer(WORD, own * number)))
        yield word


def elements_of(e: Emitter, words: Sequence[Value], bits: int) -> Iterator[Value]:
    """Words as elements of so many bits."""
    for word in words:
        for place in range(0, word.bits, bits):
            part = e.shift("ushr", word, e.integer(WORD, place)) if place else word
            yield e.resize(part, bits)
