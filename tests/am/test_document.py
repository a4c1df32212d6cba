"""What docs/drivers/am.md says of opening: its examples run, and what it names is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/drivers/am.md").read_text()
OPENING = TEXT[TEXT.index("## Opening through KFD") :]
_REFERENCE = re.compile(r"`((?:gpu|tests)/[\w./]*\w\.py)(?::([\w.]+))?`")


EXAMPLES = re.findall(r"```python\n(.*?)```", OPENING, re.DOTALL)


def test_opening(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLES[0], {})
    assert capsys.readouterr().out == "523776 AMD gfx 11.0.0 at 0000:03:00.0\n"


def test_kernel(capsys: pytest.CaptureFixture[str], need: Callable[[str], None]) -> None:
    need("llvmlite")
    exec(EXAMPLES[1], {})
    assert capsys.readouterr().out == "[0 2 4 6 8]\n"


def test_references() -> None:
    found = _REFERENCE.findall(OPENING)
    assert len(found) > 30
    for path, name in found:
        text = (ROOT / path).read_text()
        for part in name.split(".") if name else ():
            assert re.search(rf"(def|class) {part}\b|^{part}\b", text, re.MULTILINE), (path, name)
