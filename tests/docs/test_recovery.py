"""What docs/recovery.md prints is what a program that fails prints and leaves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from docs.documents import ROOT

TEXT = (ROOT / "docs/recovery.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]
PRINTED, REPORT = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
COMMAND = re.findall(r"`(SIM=\S+) python (train\.py)`", TEXT)[0]


def same(text: str) -> str:
    """A text without what is another one each time: addresses, dates, files."""
    for pattern, put in (
        (r"\b0x[0-9a-f]+", "0x?"),
        (r"behind 0x\? bytes of [a-z' ]+ at", "behind a buffer at"),
        (r" \(argument \d is 0x\?\)", ""),
        (r"\S*crashes/crash-\S+\.txt", "REPORT"),
        (r"\b20\d\d-\d\d-\d\dT\S+", "DATE"),
        (r"(?m)^ {5}[0-9a-f]{8,}:", "     at:"),
    ):
        text = re.sub(pattern, put, text)
    return text


def test_the_example(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("llvmlite")
    need("libllvm")  # the report shows disassembled code where that is
    setting, name = COMMAND
    (tmp_path / name).write_text(CODE)
    key, _, value = setting.partition("=")
    path = os.pathsep.join(map(str, (ROOT, *sys.path)))
    done = subprocess.run(
        [sys.executable, name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, key: value, "DEV": "", "CRASH_DIR": "crashes", "PYTHONPATH": path},
    )
    assert (same(done.stdout), done.stderr, done.returncode) == (same(PRINTED), "", 0)
    (report,) = (tmp_path / "crashes").glob("*.txt")
    lines = iter(same(report.read_text()).splitlines())
    for line in same(REPORT).splitlines():
        assert line == "..." or any(line == other for other in lines), line
