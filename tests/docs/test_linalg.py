"""What docs/howto/linalg.md shows runs as printed, and its table has every step of the host."""

from __future__ import annotations

import re

import pytest

from docs.documents import ROOT
from gpu.compiler.ir.graph.hostcall import FUNCTIONS

TEXT = (ROOT / "docs/howto/linalg.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_the_examples(code: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == printed


def test_the_table_has_every_step_of_the_host() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == list(FUNCTIONS)
