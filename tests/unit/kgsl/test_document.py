"""What docs/drivers/kgsl.md shows is what the encoder makes."""

from __future__ import annotations

from pathlib import Path

from unit.kgsl.launch_dump import launch_dump

TEXT = (Path(__file__).resolve().parents[3] / "docs/drivers/kgsl.md").read_text()


def test_the_launch_is_as_shown() -> None:
    shown = TEXT.split("<!-- dump: launch -->\n```text\n")[1].split("\n```")[0]
    assert shown == launch_dump()
