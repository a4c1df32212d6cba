"""What docs/processes.md shows runs as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import gpu
from docs.documents import ROOT

TEXT = (ROOT / "docs/processes.md").read_text()
(CODE, OUTPUT) = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", TEXT, re.DOTALL)[0]


def test_the_example(tmp_path: Path) -> None:
    script = tmp_path / "example.py"  # spawned processes import it
    script.write_text(CODE)
    done = subprocess.run(
        [sys.executable, os.fspath(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(gpu.__file__).parents[1])},
    )
    assert (done.stdout, done.stderr, done.returncode) == (OUTPUT, "", 0)
