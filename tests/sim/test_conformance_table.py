"""docs/conformance.md names every case of kfdtest once, and counts them right."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/conformance.md"
UPSTREAM = 167


def test_every_case_stands_somewhere() -> None:
    text = DOCUMENT.read_text()
    groups = dict(re.findall(r"^## (\w+) \((\d+)\)$", text, re.MULTILINE))
    rows = re.findall(
        r"^\| (\w+) \| (mirrored|planned with kernels|out of scope) \| (.+) \|$", text, re.M
    )
    cases = [row for row in rows if not row[2].isdigit()]
    assert len(cases) == UPSTREAM == sum(map(int, groups.values()))
    counted = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|", text, re.MULTILINE))
    assert Counter(state for _, state, _ in cases) == {k: int(v) for k, v in counted.items()}
    mirrored = [where for _, state, where in cases if state == "mirrored"]
    assert all(re.fullmatch(r"`tests/sim/test_\w+\.py:test_\w+`", where) for where in mirrored)
