"""Memory in WGSL: how elements lie in buffers, and expressions that load and store them.

Buffers hold what the host has, byte for byte: elements of 8 and 16 bits are packed into u32 words,
the first one lowest. Invocations may write neighbours at once, so such a store changes its part of
the word by an atomic exclusive-or with what is to change there; nobody else changes that part. (The
alternative, a word for each element, would take up to four times the memory and a conversion of
every copy.) Where the device has f16, a float16 is an element by itself.

Where a program loads four words at a time (`gpu/compiler/lower/quads.py`), it does so from a copy
of the buffer in a texture, whose texels are four words, `TEXELS` in a row. What it stores four
words at a time is an array of vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst
from gpu.compiler.render.wgsl_ops import type_name
from gpu.core.dtype import DType, dtypes

TEXELS: Final = 2048
"""Of a row: a power of two, with which textures of 16,384 rows hold more than buffers do."""

_QUAD: Final = 4


class Place(NamedTuple):
    """What a pointer points to.

    Attributes:
        name: of the variable.
        dtype: of the elements.
        packed: whether elements are parts of words.
        atomic: whether words are accessed by atomic operations.
        spilled: whether it is a part of the words of all invocations, an element in each.
        stride: of spilled memory, what an index is multiplied with.
        base: of spilled memory, what is added to it then, as text.
        quads: whether elements are parts of vectors of four.
    """

    name: str
    dtype: DType
    packed: bool = False
    atomic: bool = False
    spilled: bool = False
    stride: int = 1
    base: str = ""
    quads: bool = False

    def element(self, at: str) -> str:
        """The element at an index, where it is a variable of its own."""
        if self.spilled:
            return f"{self.name}[{at} * {self.stride} + {self.base}]"
        if self.quads:
            return f"{self.name}[u32({at}) >> 2u][u32({at}) & 3u]"
        return f"{self.name}[{at}]"


def is_packed(dtype: DType, has_f16: bool) -> bool:
    """Whether elements of a dtype are parts of words in a buffer."""
    return dtype.bits < 32 and not (dtype is dtypes.float16 and has_f16)


def element_type(dtype: DType, has_f16: bool, atomic: bool) -> str:
    """The type of a buffer's elements."""
    if not is_packed(dtype, has_f16):
        return type_name(dtype, has_f16)
    return "atomic<u32>" if atomic else "u32"


def loaded_in_quads(body: Iterable[Inst]) -> set[Inst]:
    """The pointers whose elements a program loads four at a time."""
    return {inst.args[0] for inst in body if inst.op == "load" and inst.lanes == _QUAD}


def stored_in_quads(body: Iterable[Inst]) -> set[Inst]:
    """The pointers whose elements a program stores four at a time, here and there at least."""
    return {inst.args[0] for inst in body if inst.op == "store" and inst.args[2].lanes == _QUAD}


def load_quad(texture: str, at: str, kind: str) -> str:
    """An expression for the four elements of type `kind` that begin at an index."""
    texel = f"u32({at}) >> 2u"
    place = f"vec2u(({texel}) & {TEXELS - 1}u, ({texel}) >> {TEXELS.bit_length() - 1}u)"
    words = f"textureLoad({texture}, {place}, 0)"
    return words if kind == "u32" else f"bitcast<vec4<{kind}>>({words})"


def store_quad(place: Place, at: str, value: str) -> str:
    """A statement that stores four elements which begin at an index."""
    return f"{place.name}[u32({at}) >> 2u] = {value};"


def load(place: Place, at: str) -> str:
    """An expression for the element at an index."""
    if place.spilled:
        return _from_word(place.element(at), place.dtype)
    if not place.packed:
        return place.element(at)
    bits = place.dtype.bits
    word = f"{place.name}[u32({at}) >> {_log2_of_parts(bits)}u]"
    if place.atomic:
        word = f"atomicLoad(&{word})"
    if place.dtype.kind == "int":
        word = f"bitcast<i32>({word})"
    part = f"extractBits({word}, {_offset(f'u32({at})', bits)}, {bits}u)"
    return f"{part} != 0u" if place.dtype is dtypes.bool else part


def store(place: Place, at: str, value: str) -> str:
    """A statement that stores a value at an index."""
    if not place.packed:
        word = _to_word(value, place.dtype) if place.spilled else value
        return f"{place.element(at)} = {word};"
    return f"store_{place.name}(u32({at}), u32({value}));"


def _from_word(word: str, dtype: DType) -> str:
    if dtype is dtypes.bool:
        return f"({word} != 0u)"
    kind = type_name(dtype, has_f16=False)
    return word if kind == "u32" else f"bitcast<{kind}>({word})"


def _to_word(value: str, dtype: DType) -> str:
    if dtype is dtypes.bool:
        return f"u32({value})"
    return value if type_name(dtype, has_f16=False) == "u32" else f"bitcast<u32>({value})"


def store_function(place: Place) -> str:
    """The function that stores into packed memory."""
    bits = place.dtype.bits
    word = f"{place.name}[at >> {_log2_of_parts(bits)}u]"
    mask = f"{(1 << bits) - 1:#x}u"
    return f"""fn store_{place.name}(at: u32, value: u32) {{
  let offset = {_offset("at", bits)};
  let old = atomicLoad(&{word});
  atomicXor(&{word}, (((old >> offset) ^ value) & {mask}) << offset);
}}"""


def _offset(at: str, bits: int) -> str:
    """The first bit of an element within its word."""
    return f"({at} & {32 // bits - 1}u) * {bits}u"


def _log2_of_parts(bits: int) -> int:
    return (32 // bits).bit_length() - 1
