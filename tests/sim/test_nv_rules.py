"""nv-rules.md: every row names a check and a test that exist, and no check is left out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from docs.documents import functions

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "gpu/sim/nv"
TEXT = (ROOT / "docs/reference/nv-rules.md").read_text()
ROW = re.compile(
    r"^\| (?P<rule>.+) \| (?P<source>\S.*) \| `(?P<check>[\w./]+:[\w.]+)`"
    r" \| `(?P<test>[\w./]+:\w+)`(?:: (?P<case>.+))? \|$",
    re.MULTILINE,
)
SECTION = re.compile(r"^## (.+) \((\d+)\)$", re.MULTILINE)
LEAST = 120
# What ends a call or a channel, or records a violation; the functions that only build such errors.
REFUSALS = {
    *("check", "graphics", "pbdma", "class_error", "RmError", "SysError"),
    *("ChannelError", "KernelFault", "_error", "violation"),
}
BUILDERS = {
    f"gpu/sim/nv/{name}"
    for name in (
        *("chip/errors.py:pbdma", "chip/errors.py:class_error", "chip/errors.py:graphics"),
        *("rm/status.py:check", "rm/objects.py:expect", "chip/copyengine.py:CopyEngine._error"),
    )
}


def sections() -> dict[str, tuple[int, list[re.Match[str]]]]:
    """Section -> (how many rows it says it has, its rows)."""
    parts = SECTION.split(TEXT)[1:]
    return {
        name: (int(count), list(ROW.finditer(body)))
        for name, count, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


ROWS = [row for _, rows in sections().values() for row in rows]


@cache
def words(path: Path) -> set[object]:
    return {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}


def calls(node: ast.AST) -> set[str]:
    """Names of what a function calls."""
    made = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return {f.id if isinstance(f, ast.Name) else getattr(f, "attr", "") for f in made}


def test_sections_count_their_rows() -> None:
    assert {name: count for name, (count, _) in sections().items()} == {
        name: len(rows) for name, (_, rows) in sections().items()
    }
    total = re.search(r"the (\d+) rules", TEXT)
    assert total is not None and int(total[1]) == len(ROWS) >= LEAST
    for name, (_, rows) in sections().items():
        assert max(Counter(row["rule"] for row in rows).values()) == 1, name


def test_checks_exist() -> None:
    for row in ROWS:
        where, _, name = row["check"].partition(":")
        assert name in functions(ROOT / where), row["rule"]


def test_tests_exist() -> None:
    for row in ROWS:
        where, _, name = row["test"].partition(":")
        assert name.startswith("test_") and name in functions(ROOT / where), row["rule"]
        assert row["case"] is None or row["case"] in words(ROOT / where), row["rule"]


def test_whatever_refuses_is_named() -> None:
    named = {row["check"] for row in ROWS} | BUILDERS
    left = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in MODEL.rglob("*.py")
        for name, node in functions(path).items()
        if isinstance(node, ast.FunctionDef) and calls(node) & REFUSALS
    }
    assert left <= named, left - named
