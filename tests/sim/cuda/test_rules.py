"""cuda-rules.md: every row names a check and a test that exist, and no violation is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.documents import functions

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs/reference/cuda-rules.md").read_text()
ROW = re.compile(
    r"^\| (?P<rule>.+) \| (?P<source>\S.*) \| `(?P<check>[\w./]+:[\w.]+)`"
    r" \| `(?P<test>[\w./]+:\w+)` \|$",
    re.MULTILINE,
)
ROWS = list(ROW.finditer(TEXT))
VIOLATIONS = TEXT[TEXT.index("## Violations") :]
# What tells of violations for others, and of failures of the model itself.
TELLERS = {"driver.py:Driver.__init__", "driver.py:Driver.enter", "work.py:Work.__init__",
           "library.py:Library.violations", "library.py:Library.check"}  # fmt: skip


def test_all_rows_are_read() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(lines) - 2 > 50


@pytest.mark.parametrize("part", ["check", "test"])
def test_what_rows_name_is_there(part: str) -> None:
    missing = []
    for row in ROWS:
        path, _, name = row[part].partition(":")
        if not (ROOT / path).exists() or name not in functions(ROOT / path):
            missing.append(row[part])
    assert not missing


def test_every_violation_has_a_row() -> None:
    listed = {row["check"] for row in ROW.finditer(VIOLATIONS)}
    told = set()
    for path in (ROOT / "gpu/sim/cuda").rglob("*.py"):
        for name, node in functions(path).items():
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]
            if any(n.attr in ("violation", "_tell") for n in calls) and isinstance(
                node, ast.FunctionDef
            ):
                told.add(f"{path.relative_to(ROOT / 'gpu/sim/cuda')}:{name}")
    for name in sorted(told - TELLERS):
        if name.endswith("__init__"):  # keeps who is told
            continue
        assert f"gpu/sim/cuda/{name}" in listed, name
