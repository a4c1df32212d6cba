"""metal-rules.md: every row names a check and a test that exist, and no violation is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.documents import functions
from gpu.sim.metal.engine import _FAULTS

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs/reference/metal-rules.md").read_text()
ROW = re.compile(
    r"^\| (?:`(?P<name>[\w-]+)` \| )?(?P<rule>[^|`]+) \| (?P<source>[^|]+) \|"
    r" `(?P<check>[\w./]+:[\w.]+)` \| `(?P<test>[\w./]+:\w+)` \|$",
    re.MULTILINE,
)
ROWS = list(ROW.finditer(TEXT))
NAMES = [row["name"] for row in ROWS if row["name"]]


def test_all_rows_are_read() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(lines) - 2 > 90
    assert len(set(NAMES)) == len(NAMES) > 60


@pytest.mark.parametrize("part", ["check", "test"])
def test_what_rows_name_is_there(part: str) -> None:
    missing = []
    for row in ROWS:
        path, _, name = row[part].partition(":")
        if not (ROOT / path).exists() or name not in functions(ROOT / path):
            missing.append(row[part])
    assert not missing


def test_every_violation_has_a_row_and_every_row_a_violation() -> None:
    told = {rule for rule, _ in _FAULTS.values()}
    for path in (ROOT / "gpu/sim/metal").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.search(
                r"^Misuse$|\.throw$", ast.unparse(node.func)
            ):
                assert isinstance(node.args[0], ast.Constant), ast.unparse(node)
                told.add(node.args[0].value)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                told.update(re.findall(r"^([a-z]+(?:-[a-z]+)+|leak): ", node.value))
    assert told - {"model-failed"} == set(NAMES)  # that one is the model's own


def test_names_are_those_that_tests_expect() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in NAMES if name not in tests] == []
