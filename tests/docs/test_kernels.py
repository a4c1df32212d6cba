"""What docs/howto/kernels.md shows runs as it is printed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from docs.documents import ROOT

TEXT = (ROOT / "docs/howto/kernels.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=["function", "text", "both"])
def test_the_examples(
    code: str, printed: str, capsys: pytest.CaptureFixture[str], need: Callable[[str], None]
) -> None:
    if "METAL" in code:
        need("clang")
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == printed
