"""What docs/howto/solving.md shows runs as it is printed."""

from __future__ import annotations

import re

import pytest

from docs.documents import ROOT

TEXT = (ROOT / "docs/howto/solving.md").read_text()
((CODE, PRINTED),) = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", TEXT, re.DOTALL)


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(CODE, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == PRINTED
