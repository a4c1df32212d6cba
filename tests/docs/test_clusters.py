"""What docs/howto/clusters.md shows prints the same alone and on two ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.documents import ROOT
from mpi.launch import mpiexec

TEXT = (ROOT / "docs/howto/clusters.md").read_text()
CODE, OUTPUT = (
    "".join(re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)) for kind in ("python", "text")
)


def test_the_example(
    tmp_path: Path, need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its blocks, one after the other."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(CODE)
    alone = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (alone.stdout, alone.stderr) == (OUTPUT, "")
    need("mpi")
    together = mpiexec(2, str(script))
    assert (together.stdout, together.returncode) == (OUTPUT, 0), together.stderr
