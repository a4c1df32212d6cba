"""What the text of a source of MSL says of its kernels: which parameter is what.

Clang ignores attributes in double brackets, and so indices of buffers and what a number of a thread
counts are read here. Sections are those of the "Metal Shading Language Specification", version 3.2:
5.1 (kernels), 5.2.1 (indices), 5.2.3.6 (numbers of threads).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["device", "constant", "threadgroup", "number"]
NUMBERS: Final = (
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "simdgroups_per_threadgroup",
)
"""What a thread may be told; three words are kept of each, in this order."""
_COMMENTS: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL: Final = re.compile(
    r"(?P<before>(?:\[\[(?:[^\]]|\](?!\]))*\]\]\s*)*)(?:\bkernel\b\s*)?"
    r"(?P<after>(?:\[\[(?:[^\]]|\](?!\]))*\]\]\s*)*)void\s+(?P<name>\w+)\s*\("
)
_ATTRIBUTE: Final = re.compile(r"(\w+)\s*(?:\(\s*([^()]*)\s*\))?")
_BRACKETS: Final = re.compile(r"\[\[((?:[^\]]|\](?!\]))*)\]\]")
_SIZES: Final = {
    **dict.fromkeys(("bool", "char", "uchar", "int8_t", "uint8_t"), 1),
    **dict.fromkeys(("short", "ushort", "half", "bfloat", "int16_t", "uint16_t"), 2),
    **dict.fromkeys(("int", "uint", "float", "int32_t", "uint32_t", "atomic_uint"), 4),
    **dict.fromkeys(("atomic_int", "atomic_float", "unsigned"), 4),
    **dict.fromkeys(("long", "ulong", "size_t", "int64_t", "uint64_t"), 8),
}
_VECTOR: Final = re.compile(r"(packed_)?([a-z]+?)([234])$")
_SPACES: Final = {"__global": "device", "__constant": "constant", "__local": "threadgroup"}
_QUALIFIERS: Final = {"const", "device", "constant", "threadgroup", "volatile", "restrict"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        kind: the address space it points to, or a number of the thread.
        name: as the source calls it.
        index: of the argument table, or of `NUMBERS`.
        align: bytes that an element is aligned to; of a number, bytes of one word.
    """

    kind: Kind
    name: str
    index: int
    align: int


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
        name: as the source calls it.
        parameters: in order.
        most_threads: of a threadgroup, as it says itself; 0 where it does not.
    """

    name: str
    parameters: tuple[Parameter, ...]
    most_threads: int


class SourceError(Exception):
    """A source says something of a kernel that this model does not know, or that is not allowed."""


def kernels_of(source: str) -> dict[str, Kernel]:
    """All kernels of a source, by name. Raises SourceError."""
    text = _COMMENTS.sub(" ", source)
    for compiled, word in {**_SPACES, "__kernel": "kernel"}.items():
        text = re.sub(rf"\b{compiled}\b", word, text)
    found = {}
    for match in _KERNEL.finditer(text):
        attributes = dict(_attributes(match["before"] + match["after"]))
        if "kernel" not in match[0].split("void")[0].replace("[[", " ").replace("]]", " ").split():
            continue
        listed = _until_closed(text, match.end())
        most = attributes.get("max_total_threads_per_threadgroup", "0")
        found[match["name"]] = Kernel(match["name"], _parameters(listed), int(most))
    return found


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    for brackets in _BRACKETS.finditer(text):
        for each in _ATTRIBUTE.finditer(brackets[1]):
            yield each[1], each[2] or ""


def _until_closed(text: str, start: int) -> str:
    depth, at = 1, start
    while depth:
        if at == len(text):
            raise SourceError("a kernel's list of parameters does not end")
        depth += (text[at] == "(") - (text[at] == ")")
        at += 1
    return text[start : at - 1]


def _split(listed: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, letter in enumerate(listed):
        depth += (letter in "([<{") - (letter in ")]>}")
        if letter == "," and not depth:
            yield listed[start:at]
            start = at + 1
    if listed[start:].strip():
        yield listed[start:]


def _parameters(listed: str) -> tuple[Parameter, ...]:
    given = [(_BRACKETS.sub(" ", each), dict(_attributes(each))) for each in _split(listed)]
    taken = {
        (name, int(value))
        for _, attributes in given
        for name, value in attributes.items()
        if name in ("buffer", "threadgroup")
    }
    return tuple(_parameter(*each, taken) for each in given)


def _parameter(declared: str, attributes: dict[str, str], taken: set[tuple[str, int]]) -> Parameter:
    words = re.findall(r"\w+", declared)
    name = words[-1]
    kinds: tuple[Kind, ...] = ("device", "constant", "threadgroup")
    kind = next((each for each in kinds if each in words), None)
    element = next(word for word in words if word not in _QUALIFIERS)
    if kind is None:
        for number, told in enumerate(NUMBERS):
            if told in attributes:
                return Parameter("number", name, number, _size(element)[0])
        known = ", ".join(attributes) or "none"
        raise SourceError(f"parameter {name}: no attribute that this model knows, but {known}")
    place = "threadgroup" if kind == "threadgroup" else "buffer"
    if place in attributes:
        index = int(attributes[place])
    else:
        index = next(i for i in range(64) if (place, i) not in taken)
        taken.add((place, index))
    return Parameter(kind, name, index, _size(element)[1])


def _size(name: str) -> tuple[int, int]:
    """Bytes of a scalar of a type, and what the type is aligned to; of a structure 1."""
    if name in _SIZES:
        return _SIZES[name], _SIZES[name]
    match = _VECTOR.match(name)
    if match is None or match[2] not in _SIZES:
        return 1, 1
    size = _SIZES[match[2]]
    return size, size if match[1] else size * (2 if match[3] == "2" else 4)
