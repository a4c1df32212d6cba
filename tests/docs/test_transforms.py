"""What docs/howto/transforms.md shows runs as it is printed."""

from __future__ import annotations

import re

import pytest

from docs.documents import ROOT
from gpu import func

TEXT = (ROOT / "docs/howto/transforms.md").read_text()
((CODE, PRINTED),) = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", TEXT, re.DOTALL)


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(CODE, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == PRINTED


def test_all_transforms_are_named() -> None:
    assert [name for name in func.__all__ if f"`{name}`" not in TEXT] == []
