"""C structures through ctypeslib2 and libclang, made independent of this machine.

ctypeslib2 writes a module of ctypes classes. It is run in a process of its own, and its module is
loaded here, once, to read the layouts off its classes; `emit.py` writes them in our form. Where
members are, bit fields above all, is libclang's word: ctypeslib2 gives bit fields, and what stands
beside them, other types than the header does.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import keyword
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import records
from .bitfields import Member, Placed, overlay, place
from .recipe import AutogenError, CTypes, Patterns

# The pins of the extra `autogen` in pyproject.toml: bindings newer than the library fail, and other
# versions may write other bytes.
PINS: Final = {"ctypeslib2": "2.4.0", "clang": "18.1.8", "libclang": "18.1.1"}


def _unless_there(name: str, text: str) -> str:
    """A stub that a package's own header takes the place of."""
    own = f"#if __has_include_next(<{name}>)\n#include_next <{name}>\n#else\n"
    return f"{own}{text}#endif\n"


# What headers include and packages lack, in words of the compiler's own: no header of this machine
# is looked at.
STUBS: Final = {
    "stddef.h": "typedef __SIZE_TYPE__ size_t;\n"
    "#define offsetof(type, member) __builtin_offsetof(type, member)\n",
    "stdbool.h": "#define bool _Bool\n",
    "stdint.h": "".join(
        f"typedef __{sign}INT{bits}_TYPE__ {sign.lower()}int{bits}_t;\n"
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    )
    + "typedef __UINTPTR_TYPE__ uintptr_t;\n",
    "cstddef": "#include <stddef.h>\n",
    "cstdint": "#include <stdint.h>\n",
    "asm/bitsperlong.h": "#include <asm-generic/bitsperlong.h>\n",
    "asm/ioctl.h": "#include <asm-generic/ioctl.h>\n",
    "asm/posix_types.h": "#include <asm-generic/posix_types.h>\n",
    "asm/types.h": "#include <asm-generic/int-ll64.h>\n",
    "linux/compiler_types.h": "",
    "linux/ioctl.h": _unless_there("linux/ioctl.h", ""),  # `macros` knows what it says
    "linux/types.h": _unless_there(
        "linux/types.h",
        "".join(
            f"typedef __{sign}INT{bits}_TYPE__ __{letter}{bits};\n"
            for sign, letter in (("", "s"), ("U", "u"))
            for bits in (8, 16, 32, 64)
        ),
    ),
}
_SUFFIX: Final = {"c": "h", "c++": "hpp"}
_INTEGERS: Final = "bBhHiIlLqQ"
_UNNAMED_ENUM: Final = re.compile(r"\benum(?=\s*[{:])")
_TAGS: Final = ("struct_", "union_")
_PADDING: Final = "PADDING_"
_BITS: Final = re.compile(r"\(('\w+', [\w.]+), \d+\),")


@dataclass(frozen=True)
class Structure:
    """A structure or union with explicit padding; `places` are (first bit, bits) of members."""

    name: str
    base: str
    size: int
    fields: tuple[Placed, ...]
    anonymous: tuple[str, ...]
    places: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Layouts:
    """What headers declare: structures, inner ones first; other names of them; integers."""

    structures: dict[str, Structure]
    aliases: dict[str, str]
    integers: dict[str, int]


def lacking() -> str | None:
    """Why ctypeslib2 cannot be used here, or None."""
    for name, version in PINS.items():
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} {version} is not installed: pip install -e '.[autogen]'"
        if have != version:
            return f"{name} {have} is installed instead of {version}: pip install -e '.[autogen]'"
    return None


def read(recipe: CTypes, folder: Path) -> Layouts:
    """The declarations of a recipe's headers, which lie below a folder; stubs are put beside them.

    Of the structures those that the recipe names, and what they hold; of the integers all.

    Raises:
        AutogenError: the headers do not parse, or hold what has no fixed layout.
    """
    missing = lacking()
    if missing:
        raise AutogenError(missing)
    names = Patterns(recipe.structs)
    copy = _copy(folder)
    main = copy / f"all.{_SUFFIX[recipe.language]}"
    main.write_text("".join(f'#include "{copy / name}"\n' for name in recipe.headers))
    flags = [
        *("-x", recipe.language, "-nostdinc", "-target", "x86_64-linux-gnu", f"-I{copy / 'stubs'}"),
        *(f"-I{copy / include}" for include in recipe.include),
        *(f"-D{define}" for define in recipe.defines),
    ]
    module = _load(_convert(recipe, main, flags))
    layouts = _Reader(module, records.records(main, flags), names).layouts()
    names.check(f"structures of {recipe.module}")
    return layouts


def verify(text: str, layouts: Layouts) -> None:
    """Raises AutogenError where a member of a module's classes is not where libclang has it."""
    module: dict[str, Any] = {"__name__": "verified"}
    exec(text, module)
    for one in layouts.structures.values():
        kind = module[one.name]
        bits = {field.name for field in one.fields if field.bits}
        for name, (start, width) in one.places.items():
            place = getattr(kind, name)
            if name in bits:
                value = kind()
                setattr(value, name, -1)
                there = int.from_bytes(bytes(value), "little") == ((1 << width) - 1) << start
            else:
                there = (8 * place.offset, 8 * place.size) == (start, width)
            if not there:
                raise AutogenError(f"{one.name}.{name}: not {width} bits from bit {start} on")
        if ctypes.sizeof(kind) != one.size:
            raise AutogenError(f"{one.name} is {ctypes.sizeof(kind)} bytes, not {one.size}")


def _copy(folder: Path) -> Path:
    """A copy of the headers in which every enumeration has a name, with the stubs beside them.

    ctypeslib2 writes just one enumeration without a name, and no type for members of such a type.
    """
    copy = folder / "copy"
    if not copy.exists():
        for path in sorted(folder.rglob("*.h")):
            _put(copy / path.relative_to(folder), _name_enumerations(path.stem, path.read_text()))
        for name, text in STUBS.items():
            _put(copy / "stubs" / name, text)
    return copy


def _name_enumerations(stem: str, text: str) -> str:
    first, *others = _UNNAMED_ENUM.split(text)
    return first + "".join(f"enum {stem}_{i}{other}" for i, other in enumerate(others))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _convert(recipe: CTypes, main: Path, flags: Sequence[str]) -> Path:
    output = main.with_name("ctypeslib.py")
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from ctypeslib.clang2py import main; main()"),
            *("-i", "-k", "cdefmstu", f"--clang-args={' '.join(flags)}"),
            *("-o", str(output), str(main)),
        ],
        env={**os.environ, "CLANG_LIBRARY_PATH": str(records.library())},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or "Please fix" in done.stderr:
        raise AutogenError(f"clang2py on {', '.join(recipe.headers)}:\n{done.stderr}")
    return output


def _load(path: Path) -> dict[str, Any]:
    """ctypeslib2's module. Widths of bit fields are left out: some are 0, which ctypes refuses."""
    module: dict[str, Any] = {"__name__": path.stem}
    text = _BITS.sub(r"(\1),", path.read_text())
    exec(compile(text, str(path), "exec"), module)
    return module


class _Reader:
    """Reads a module of ctypeslib2: the structures whose name, or other name, is wanted."""

    def __init__(
        self, module: dict[str, Any], described: Mapping[str, Any], wanted: Patterns
    ) -> None:
        self._module = module
        self._described = described
        self._wanted = wanted
        self._structures: dict[str, Structure] = {}
        self._aliases: dict[str, str] = {}

    def layouts(self) -> Layouts:
        for name, value in self._module.items():
            if isinstance(value, type) and issubclass(value, (ctypes.Structure, ctypes.Union)):
                plain = _plain(value)
                alias = not name.startswith(_TAGS)
                known = name if alias else plain
                wanted = hasattr(value, "_fields_") and known in self._wanted
                if wanted and known in self._described:  # without a tag: with what holds it
                    self._structure(value, self._described[known])
                    if alias and name != plain:
                        self._aliases[name] = plain
        integers = {n: v for n, v in self._module.items() if type(v) is int}
        return Layouts(self._structures, self._aliases, integers)

    def _structure(self, kind: type[ctypes.Structure | ctypes.Union], record: Any) -> str:
        name = _plain(kind)
        if name not in self._structures:
            said = [(_word(member), one) for member, one, *_ in kind._fields_]
            described = records.members(record)
            named = [one for one in said if not one[0].startswith(_PADDING)]
            if len(named) != len(described):
                raise AutogenError(f"{name}: ctypeslib2 and libclang do not see the same members")
            pairs = list(zip(named, described, strict=True))
            union, size = issubclass(kind, ctypes.Union), record.get_size()
            if any(one.bits for one in described):
                members = [
                    self._member(*pair, one) for pair, one in pairs if one.name or not one.bits
                ]
                fields = overlay(members, size) if union else place(name, members, size)
            else:
                types = {member: one.type for (member, _), one in pairs}
                fields = [Placed(m, *self._type(one, types.get(m))) for m, one in said]
            self._structures[name] = Structure(
                name,
                "Union" if union else "Structure",
                size,
                tuple(fields),
                tuple(getattr(kind, "_anonymous_", ())),
                {m: (one.start, one.width) for (m, _), one in pairs if one.name or not one.bits},
            )
        return name

    def _member(self, said: str, kind: Any, one: records.Described) -> Member:
        """A member beside bit fields, whose scalars ctypeslib2 may have given another type."""
        bits, signed = records.integer(one.type)
        if one.bits:
            return Member(said, one.start, one.width, signed=signed)
        if issubclass(kind, (ctypes.Structure, ctypes.Union, ctypes.Array)):
            types = self._type(kind, one.type)
        else:
            types = (f"ctypes.c_{'' if signed else 'u'}int{bits}", "int")
        return Member(said, one.start, one.width, *types)

    def _type(self, kind: Any, described: Any) -> tuple[str, str]:
        """The type as a ctypes expression of fixed width, and for type checkers."""
        if issubclass(kind, ctypes.Array):
            item = kind._type_
            ctype, annotation = self._type(item, described)
            inner = annotation if issubclass(item, ctypes.Array) else ctype
            array = "bytes" if item is ctypes.c_char else f"ctypes.Array[{inner}]"
            return f"{ctype} * {kind._length_}", array
        if issubclass(kind, (ctypes.Structure, ctypes.Union)):
            name = self._structure(kind, records.element(described))
            return name, name
        code = getattr(kind, "_type_", None)
        if kind is ctypes.c_char:
            return "ctypes.c_char", "bytes"
        if code in tuple(_INTEGERS):
            sign = "u" if code.isupper() else ""
            return f"ctypes.c_{sign}int{8 * ctypes.sizeof(kind)}", "int"
        # Pointers are numbers: what they point at may be in another address space.
        if ctypes.sizeof(kind) == 8 and (code == "P" or hasattr(kind, "contents")):
            return "ctypes.c_uint64", "int"
        raise AutogenError(f"{kind} has no type of fixed width")


def _word(name: str) -> str:
    """A member's name in Python: `in` is none, and becomes `in_`."""
    return f"{name}_" if keyword.iskeyword(name) else name


def _plain(kind: type) -> str:
    name = kind.__name__
    for prefix in _TAGS:
        name = name.removeprefix(prefix)
    return name


def promoted(structures: Mapping[str, Structure], one: Structure) -> Iterator[Placed]:
    """The members of the anonymous structures and unions inside of a structure."""
    for member in one.fields:
        if member.name in one.anonymous:
            inner = structures[member.ctype]
            yield from (f for f in inner.fields if f.name not in inner.anonymous)
            yield from promoted(structures, inner)
