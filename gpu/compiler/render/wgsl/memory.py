"""Memory in WGSL: how elements lie in buffers, and expressions that load and store them.

Buffers hold what the host has, byte for byte: elements of 8 and 16 bits are packed into u32 words,
the first one lowest. Invocations may write neighbours at once, so such a store changes its part of
the word by an atomic exclusive-or with what is to change there; nobody else changes that part. (The
alternative, a word for each element, would take up to four times the memory and a conversion of
every copy.) Where the device has f16, a float16 is an element by itself.

Where a program loads four elements at a time (`gpu/compiler/lower/vectorize_access4.py`), it does
so from a copy of the buffer in a texture, whose texels are four words, `TEXELS` in a row. What it
stores four words at a time is an array of vectors; four packed elements are whole words, which
nobody else changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst
from gpu.compiler.render.wgsl.ops import type_name
from gpu.core.dtype import DType, dtypes

TEXELS: Final = 2048
"""Of a row: a power of two, with which textures of 16,384 rows hold more than buffers do."""

_LOG2_TEXELS: Final = TEXELS.bit_length() - 1
_QUAD: Final = 4
# Of narrow elements that lie in a quad, where in their words they begin.
_SHIFTS: Final = {16: "vec4u(0u, 16u, 0u, 16u)", 8: "vec4u(0u, 8u, 16u, 24u)"}


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


def quad_function(texture: str, dtype: DType, has_f16: bool) -> str:
    """The function that loads the four elements which begin at an index."""
    kind = f"vec4<{type_name(dtype, has_f16)}>"
    texel = f"at >> {_log2_of_parts(dtype.bits) + 2}u"
    return f"""fn quad_{texture}(at: u32) -> {kind} {{
  let texel = {texel};
  let words = textureLoad({texture}, vec2u(texel & {TEXELS - 1}u, texel >> {_LOG2_TEXELS}u), 0);
  return {_QUADS_OF[dtype.bits](dtype, kind)};
}}"""


def load_quad(texture: str, at: str) -> str:
    """An expression for the four elements that begin at an index."""
    return f"quad_{texture}(u32({at}))"


def _quad_of_words(dtype: DType, kind: str) -> str:
    return "words" if kind == "vec4<u32>" else f"bitcast<{kind}>(words)"


def _quad_of_halves(dtype: DType, kind: str) -> str:
    pair = "select(words.xy, words.zw, (at & 4u) != 0u)"
    if kind == "vec4<f16>":
        return f"bitcast<{kind}>({pair})"
    return _parts(dtype, f"{pair}.xxyy")


def _quad_of_bytes(dtype: DType, kind: str) -> str:
    pair = "select(words.xy, words.zw, (at & 8u) != 0u)"
    word = f"select({pair}.x, {pair}.y, (at & 4u) != 0u)"
    return _parts(dtype, f"vec4u({word})")


def _parts(dtype: DType, words: str) -> str:
    """Elements of which each lies in a word of a vector."""
    shifts = _SHIFTS[dtype.bits]
    if dtype.kind == "int":
        up = 32 - dtype.bits
        return f"bitcast<vec4i>({words} << (vec4u({up}u) - {shifts})) >> vec4u({up}u)"
    parts = f"({words} >> {shifts}) & vec4u({(1 << dtype.bits) - 1:#x}u)"
    return f"({parts}) != vec4u(0u)" if dtype is dtypes.bool else parts


_QUADS_OF: Final = {32: _quad_of_words, 16: _quad_of_halves, 8: _quad_of_bytes}


def store_quad(place: Place, at: str, value: str) -> str:
    """A statement that stores four elements which begin at an index."""
    if place.packed:
        return f"store_quad_{place.name}(u32({at}), {value});"
    return f"{place.name}[u32({at}) >> 2u] = {value};"


def store_quad_function(place: Place, has_f16: bool) -> str:
    """The function that stores four elements into packed memory: one word, or two."""
    bits = place.dtype.bits
    kind = type_name(place.dtype, has_f16)
    words = bits * _QUAD // 32
    parts = 32 // bits
    lines = [
        f"fn store_quad_{place.name}(at: u32, value: vec4<{kind}>) {{",
        f"  let parts = (vec4u(value) & vec4u({(1 << bits) - 1:#x}u)) << {_SHIFTS[bits]};",
    ]
    for word in range(words):
        lanes = " | ".join(f"parts.{lane}" for lane in "xyzw"[word * parts : (word + 1) * parts])
        to = f"{place.name}[(at >> {_log2_of_parts(bits)}u) + {word}u]"
        lines.append(f"  atomicStore(&{to}, {lanes});")
    return "\n".join([*lines, "}"])


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
