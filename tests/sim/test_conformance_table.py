"""kfdtest.md names every case of kfdtest once, counts them right, and its tests exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/reference/kfdtest.md"
UPSTREAM = 167
LEAST = 60
ROW = re.compile(r"^\| (\w+) \| (mirrored|out of scope) \| (\D.*) \|$", re.MULTILINE)


def groups() -> dict[str, tuple[int, list[tuple[str, str, str]]]]:
    """Group -> (how many cases it says it has, its rows)."""
    parts = re.split(r"^## ", TABLE.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for part in parts:
        heading = re.match(r"(\w+) \((\d+)\)\n", part)
        assert heading is not None
        found[heading[1]] = (int(heading[2]), ROW.findall(part))
    return found


@cache
def functions_of(path: str) -> set[str]:
    """The test functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_case_stands_somewhere() -> None:
    cases = []
    for name, (count, rows) in groups().items():
        assert len({case for case, _, _ in rows}) == len(rows) == count, name
        cases += rows
    assert len(cases) == UPSTREAM
    text = TABLE.read_text()
    counted = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|", text, re.MULTILINE))
    assert Counter(state for _, state, _ in cases) == {k: int(v) for k, v in counted.items()}


def test_what_is_mirrored_is_a_test() -> None:
    mirrored = [row for _, rows in groups().values() for row in rows if row[1] == "mirrored"]
    assert len(mirrored) >= LEAST
    for case, _, where in mirrored:
        found = re.fullmatch(r"`(tests/(?:sim|am)/test_\w+\.py):(test_\w+)`", where)
        assert found is not None, case
        assert found[2] in functions_of(found[1]), f"{case}: {where}"
