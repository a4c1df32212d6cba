"""What docs/drivers/nv.md shows is what the driver does, and what it names is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from nv.walk import BLOCK, DOCUMENT
from simulated import own_machines

ROOT = DOCUMENT.parents[2]
TEXT = DOCUMENT.read_text()
_REFERENCE = re.compile(r"`((?:gpu|tests)/[\w./]*\w\.(?:py|md))(?::([\w.]+))?`")


def test_the_walk_is_as_shown() -> None:
    """In a process of its own: where other GPUs are open, addresses are others."""
    command = [sys.executable, "tests/nv/walk.py", "--json"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    shown = {match["name"]: match["text"].rstrip("\n") for match in BLOCK.finditer(TEXT)}
    assert shown == json.loads(made.stdout)


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    with own_machines():
        exec(example.group(1), {})
    assert capsys.readouterr().out == "523776 NVIDIA Hopper at 0000:01:00.0\n"


def test_references() -> None:
    found = _REFERENCE.findall(TEXT)
    assert len(found) > 15
    for path, name in found:
        text = (ROOT / path).read_text()
        for part in name.split(".") if name else ():
            assert re.search(rf"(def|class) {part}\b|^{part}\b", text, re.MULTILINE), (path, name)
