"""Structures as libclang lays them out: where each member is, to the bit."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .recipe import AutogenError

_SCOPES = ("NAMESPACE", "LINKAGE_SPEC", "UNEXPOSED_DECL")
_RECORDS = ("STRUCT_DECL", "UNION_DECL", "CLASS_DECL")


@dataclass(frozen=True)
class Described:
    """A member: where it is, in bits; `bits` is whether it is a bit field."""

    name: str
    start: int
    width: int
    bits: bool
    type: Any


def library() -> Path:
    """The libclang that the extra `autogen` brings."""
    native = importlib.metadata.distribution("libclang").locate_file("clang/native")
    return Path(str(native)) / "libclang.so"


def records(main: Path, flags: Sequence[str]) -> dict[str, Any]:
    """Types of libclang by tag and by other name, of every structure and union of a file.

    Raises:
        AutogenError: libclang is not installed, or the file does not parse.
    """
    try:
        from clang import cindex
    except ImportError as error:
        raise AutogenError("libclang is not installed: pip install -e '.[autogen]'") from error

    if not cindex.Config.loaded:
        cindex.Config.set_library_file(str(library()))
    unit = cindex.Index.create().parse(str(main), args=list(flags))
    wrong = [str(one) for one in unit.diagnostics if one.severity >= cindex.Diagnostic.Error]
    if wrong:
        raise AutogenError(f"{main.name}: " + "; ".join(wrong))
    return {
        cursor.spelling: cursor.type
        for cursor in _declarations(unit.cursor)
        if cursor.is_definition() and is_record(cursor.type)
    }


def members(record: Any) -> list[Described]:
    """The members of a structure or union in their order, those without a name too."""
    return [
        Described(
            field.spelling,
            field.get_field_offsetof(),
            # An array without a length, at the end of a structure, has a negative size.
            field.get_bitfield_width()
            if field.is_bitfield()
            else 8 * max(0, field.type.get_size()),
            field.is_bitfield(),
            field.type,
        )
        for field in record.get_canonical().get_fields()
    ]


def integer(kind: Any) -> tuple[int, bool]:
    """The bits of a scalar and whether it has a sign; pointers are numbers without one."""
    name = kind.get_canonical().kind.name
    if name == "ENUM":
        kind = kind.get_canonical().get_declaration().enum_type
        name = kind.get_canonical().kind.name
    return 8 * kind.get_size(), name in ("CHAR_S", "SCHAR", "SHORT", "INT", "LONG", "LONGLONG")


def element(kind: Any) -> Any:
    """The type of an array's items, however deep; any other type itself."""
    kind = kind.get_canonical()
    while kind.kind.name == "CONSTANTARRAY":
        kind = kind.get_array_element_type().get_canonical()
    return kind


def _declarations(cursor: Any) -> Iterator[Any]:
    for child in cursor.get_children():
        if child.kind.name in _SCOPES:
            yield from _declarations(child)
        elif child.kind.name in (*_RECORDS, "TYPEDEF_DECL"):
            yield child


def is_record(kind: Any) -> bool:
    """Whether a type is a structure or union."""
    same: bool = kind.get_canonical().kind.name == "RECORD"
    return same
