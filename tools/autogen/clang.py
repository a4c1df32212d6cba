"""C structures through ctypeslib2 and libclang, made independent of this machine.

ctypeslib2 writes a module of ctypes classes. It is run in a process of its own, and its module is
loaded here, once, to read the layouts off its classes; `emit.py` writes them in our form.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import keyword
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .recipe import AutogenError, CTypes, Patterns

# The pins of the extra `autogen` in pyproject.toml: bindings newer than the library fail, and other
# versions may write other bytes.
PINS: Final = {"ctypeslib2": "2.4.0", "clang": "18.1.8", "libclang": "18.1.1"}

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
}
_SUFFIX: Final = {"c": "h", "c++": "hpp"}
_INTEGERS: Final = "bBhHiIlLqQ"
_UNNAMED_ENUM: Final = re.compile(r"\benum(?=\s*[{:])")
_TAGS: Final = ("struct_", "union_")


@dataclass(frozen=True)
class Field:
    """A member: its C type as a ctypes expression, and its Python type for type checkers."""

    name: str
    ctype: str
    annotation: str


@dataclass(frozen=True)
class Structure:
    """A structure or union with explicit padding."""

    name: str
    base: str
    size: int
    fields: tuple[Field, ...]
    anonymous: tuple[str, ...]


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
    layouts = _Reader(_load(_convert(recipe, folder)), names).layouts()
    names.check(f"structures of {recipe.module}")
    return layouts


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


def _convert(recipe: CTypes, folder: Path) -> Path:
    copy = _copy(folder)
    main, output = copy / f"all.{_SUFFIX[recipe.language]}", copy / "ctypeslib.py"
    main.write_text("".join(f'#include "{copy / name}"\n' for name in recipe.headers))
    flags = [
        *("-x", recipe.language, "-nostdinc", "-target", "x86_64-linux-gnu", f"-I{copy / 'stubs'}"),
        *(f"-I{copy / include}" for include in recipe.include),
        *(f"-D{define}" for define in recipe.defines),
    ]
    native = Path(str(importlib.metadata.distribution("libclang").locate_file("clang/native")))
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from ctypeslib.clang2py import main; main()"),
            *("-i", "-k", "cdefmstu", f"--clang-args={' '.join(flags)}"),
            *("-o", str(output), str(main)),
        ],
        env={**os.environ, "CLANG_LIBRARY_PATH": str(native / "libclang.so")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or "Please fix" in done.stderr:
        raise AutogenError(f"clang2py on {', '.join(recipe.headers)}:\n{done.stderr}")
    return output


def _load(path: Path) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), module)
    return module


class _Reader:
    """Reads a module of ctypeslib2: the structures whose name, or other name, is wanted."""

    def __init__(self, module: dict[str, Any], wanted: Patterns) -> None:
        self._module = module
        self._wanted = wanted
        self._structures: dict[str, Structure] = {}
        self._aliases: dict[str, str] = {}

    def layouts(self) -> Layouts:
        for name, value in self._module.items():
            if isinstance(value, type) and issubclass(value, (ctypes.Structure, ctypes.Union)):
                plain = _plain(value)
                alias = not name.startswith(_TAGS)
                if hasattr(value, "_fields_") and (name if alias else plain) in self._wanted:
                    self._structure(value)
                    if alias and name != plain:
                        self._aliases[name] = plain
        integers = {n: v for n, v in self._module.items() if type(v) is int}
        return Layouts(self._structures, self._aliases, integers)

    def _structure(self, kind: type[ctypes.Structure | ctypes.Union]) -> str:
        name = _plain(kind)
        if name not in self._structures:
            fields: list[Field] = []
            for said, *rest in kind._fields_:
                if len(rest) > 1:
                    raise AutogenError(f"{name}.{said} is a bit field, which is not supported")
                # `in` is no name in Python: it becomes `in_`.
                member = f"{said}_" if keyword.iskeyword(said) else said
                fields.append(Field(member, *self._type(rest[0])))
            base = "Union" if issubclass(kind, ctypes.Union) else "Structure"
            anonymous = tuple(getattr(kind, "_anonymous_", ()))
            size = ctypes.sizeof(kind)
            self._structures[name] = Structure(name, base, size, tuple(fields), anonymous)
        return name

    def _type(self, kind: Any) -> tuple[str, str]:
        """The type as a ctypes expression of fixed width, and for type checkers."""
        if issubclass(kind, ctypes.Array):
            item = kind._type_
            ctype, annotation = self._type(item)
            inner = annotation if issubclass(item, ctypes.Array) else ctype
            array = "bytes" if item is ctypes.c_char else f"ctypes.Array[{inner}]"
            return f"{ctype} * {kind._length_}", array
        if issubclass(kind, (ctypes.Structure, ctypes.Union)):
            name = self._structure(kind)
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


def _plain(kind: type) -> str:
    name = kind.__name__
    for prefix in _TAGS:
        name = name.removeprefix(prefix)
    return name


def promoted(structures: Mapping[str, Structure], one: Structure) -> Iterator[Field]:
    """The members of the anonymous structures and unions inside of a structure."""
    for member in one.fields:
        if member.name in one.anonymous:
            inner = structures[member.ctype]
            yield from (f for f in inner.fields if f.name not in inner.anonymous)
            yield from promoted(structures, inner)
