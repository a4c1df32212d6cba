"""What docs/debugging.md prints is what its programs print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from docs.documents import ROOT

TEXT = (ROOT / "docs/debugging.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"`(?:(\w+)=(\w+) )?python (\w+\.py)`", TEXT)


def test_programs(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("llvmlite")
    path = os.pathsep.join(map(str, (ROOT, *sys.path)))
    for code, printed, (setting, value, name) in zip(PROGRAMS, PRINTED, COMMANDS, strict=True):
        (tmp_path / name).write_text(code)
        own = {setting: value} if setting else {}
        done = subprocess.run(
            [sys.executable, name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **own, "DEV": "CPU", "PYTHONPATH": path},
        )
        assert done.returncode == (1 if own else 0), done.stderr
        said = done.stdout or done.stderr
        last = said[said.index("gpu.core.errors.") :] if own else said
        assert last == printed
