"""Messages arrive in functions of C that have the types of metal-cpp's methods."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.autogen.metal import METHODS
from gpu.backends.metal.objc import MTLSize, message_of
from gpu.compiler.toolchain.clang import find_clang

_HEAD = """
typedef unsigned long NSUInteger; typedef long NSInteger; typedef _Bool bool;
typedef unsigned long uint64_t;
typedef struct { NSUInteger width, height, depth; } MTLSize;
typedef struct { NSUInteger location, length; } NSRange;
NSUInteger seen[16];
"""
_FIELDS = {"MTLSize": ("width", "height", "depth"), "NSRange": ("location", "length")}


def _function(number: int, selector: str) -> str:
    result, taken = METHODS[selector]
    named = ", ".join(f"{kind} a{i}" for i, kind in enumerate(("void *", "void *", *taken)))
    lines, at = [], 0
    for i, kind in enumerate(("void *", "void *", *taken)):
        for value in [f"a{i}.{name}" for name in _FIELDS.get(kind, ())] or [f"a{i}"]:
            cast = "(NSUInteger)" if kind not in _FIELDS else ""
            lines.append(f"seen[{at}] = {cast}{value};")
            at += 1
    back = "" if result == "void" else f"return ({result})" + ("2.5" if result == "double" else "1")
    return f"{result} f{number}({named}) {{ {' '.join(lines)} {back}; }}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, need: Callable[[str], None]) -> ctypes.CDLL:
    need("clang")
    path: Path = tmp_path_factory.mktemp("calls") / "calls.so"
    code = _HEAD + "\n".join(_function(*each) for each in enumerate(METHODS))
    command = [find_clang(), "-O1", "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=code.encode(), check=True)
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize("selector", METHODS)
def test_every_argument_arrives_and_the_result_comes_back(
    library: ctypes.CDLL, selector: str
) -> None:
    result, taken = METHODS[selector]
    address = ctypes.cast(library[f"f{[*METHODS].index(selector)}"], ctypes.c_void_p).value or 0
    numbers = iter(range(1 << 40, 1 << 41, 999))
    given: list[object] = []
    wanted = [7 << 33, 5]
    for kind in taken:
        words = [next(numbers) for _ in range(len(_FIELDS.get(kind, (0,))))]
        if kind == "bool":
            words = [1]
        wanted += words
        given += [MTLSize(*words)] if kind == "MTLSize" else words
    got = message_of(address, 5, result, taken)(7 << 33, *given)
    assert [*(ctypes.c_uint64 * len(wanted)).in_dll(library, "seen")] == wanted
    assert got == {"void": None, "double": 2.5, "bool": True}.get(result, 1)
