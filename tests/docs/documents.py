"""The documents under docs/, their marked blocks, and the files and names they refer to."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENTS: Final = tuple(sorted((ROOT / "docs").glob("*.md")))
EVERY_DOCUMENT: Final = tuple(sorted((ROOT / "docs").rglob("*.md")))
_REFERENCE: Final = re.compile(
    r"`((?:gpu|tests|tools|docs|autogen|examples)/[\w./]*|README\.md|CHANGELOG\.md)(?::([\w.]+))?`"
)


@cache
def tool() -> ModuleType:
    """`tools/refresh_docs.py`, which is no part of a package."""
    path = ROOT / "tools/refresh_docs.py"
    spec = importlib.util.spec_from_file_location("refresh_docs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Reference(NamedTuple):
    """A file that a document names, and what the document says is in it, or ''."""

    path: str
    name: str


def references(text: str) -> list[Reference]:
    """What a document refers to as ``path`` or ``path:name``, in order."""
    return [Reference(*match) for match in _REFERENCE.findall(text)]


def problem(reference: Reference) -> str:
    """What is wrong with a reference, or ''."""
    path = ROOT / reference.path
    if not path.exists():
        return f"{reference.path} does not exist"
    if reference.name and reference.name not in _names(path.read_text()):
        return f"{reference.path} has no {reference.name}"
    return ""


@cache
def _names(source: str) -> frozenset[str]:
    """The functions, classes, constants and methods (as ``Class.method``) that a module defines."""
    return frozenset(_defined(ast.parse(source).body, ""))


def _defined(body: list[ast.stmt], prefix: str) -> list[str]:
    names: list[str] = []
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.append(prefix + node.name)
            case ast.ClassDef():
                names.append(prefix + node.name)
                names += _defined(node.body, f"{prefix}{node.name}.")
            case ast.Assign():
                names += [prefix + t.id for t in node.targets if isinstance(t, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(prefix + name)
    return names


@cache
def functions(path: Path) -> dict[str, ast.AST]:
    """Everything of a file that has a name, methods behind their class's."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}.{method.name}": method for method in methods}
    return found
