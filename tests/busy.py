"""The mark `timing`: tests that could fail, or pass, because a machine has much else to do.

They have to do with signals, processes, threads or clocks. A test gets the mark where it uses such
a module, or a function or fixture of the tests that does, in runs whose `-m` names it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

_TESTS: Final = Path(__file__).parent
MODULES: Final = frozenset(
    {"concurrent.futures", "multiprocessing", "signal", "subprocess", "threading", "time"}
)
CALLS: Final = frozenset({"os.abort", "os.fork", "os.kill"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "timing" not in config.option.markexpr:
        return  # nobody asks; reading all files takes seconds
    for item in items:
        if isinstance(item, pytest.Function) and item.originalname in busy(item.path):
            item.add_marker(pytest.mark.timing)


@cache
def busy(path: Path) -> frozenset[str]:
    """The top-level names of a file that lead to a busy module, by way of others of the tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set(_imported(tree))
    uses = {
        node.name: set(_used(node))
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    found |= {name for name, used in uses.items() if used & CALLS}
    while more := {name for name, used in uses.items() if used & found} - found:
        found |= more
    return frozenset(found)


def _imported(tree: ast.Module) -> Iterator[str]:
    """What imports call that is busy, functions' own imports too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in MODULES:
                    yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            of_tests = _TESTS.joinpath(*node.module.split(".")).with_suffix(".py")
            names = busy(of_tests) if of_tests.is_file() else frozenset()
            for alias in node.names:
                if node.module in MODULES or alias.name in names:
                    yield alias.asname or alias.name


def _used(node: ast.AST) -> Iterator[str]:
    """Names, attributes of `os`, and parameters, which may be fixtures."""
    for each in ast.walk(node):
        match each:
            case ast.Name(name) | ast.arg(name):
                yield name
            case ast.Attribute(ast.Name("os"), name):
                yield f"os.{name}"
