"""What docs/drivers/am.md shows is what the encoder makes, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from unit.am.launch_dump import launch_dump

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs/drivers/am.md").read_text()


def test_the_launch_is_as_shown() -> None:
    shown = TEXT.split("<!-- dump: launch -->\n```text\n")[1].split("\n```")[0]
    assert shown == launch_dump()


def test_files_that_are_named_exist() -> None:
    for path in re.findall(r"`((?:gpu|tests|tools|docs)/[\w./]+\w)", TEXT):
        assert (ROOT / path).exists(), path
