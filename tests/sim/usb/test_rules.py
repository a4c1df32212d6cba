"""Names of rules: those that the model notes are those of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_names_of_rules() -> None:
    text = (ROOT / "docs/reference/usb-rules.md").read_text()
    named = set(re.findall(r"^\| ([a-z0-9]+(?:-[a-z0-9]+)*): ", text, re.MULTILINE))
    noted = {
        name
        for path in (ROOT / "gpu/sim/usb").glob("*.py")
        for name in re.findall(
            r"(?:\.violation|_refuse|_break)\(\s*\"([a-z0-9-]+)\"", path.read_text()
        )
    }
    assert named == noted
