"""The README's examples run and print what it says, and its commands are the ones that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpu

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
# A block of Python, and the block of its output that may follow.
EXAMPLES = re.findall(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", README, re.DOTALL)


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
@pytest.mark.parametrize("name", ["CPU", "PYTHON"])
def test_example_runs(code: str, output: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(gpu.__file__).parents[1]), "DEV": name},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == output.replace("on CPU", f"on {name}")


def test_the_two_commands() -> None:
    commands = re.findall(r"^    (pip .*)$", README, re.MULTILINE)
    assert commands == ["pip install . && gpu demo", "pip install '.[test]' && pytest"]


def test_paths_exist() -> None:
    """The table "Where things are" names what there is."""
    section = README.split("## Where things are")[1]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert len(rows) > 5
    for row in rows:
        first, *others = re.findall(r"`(.*?)`", row)
        for path in (first, *(Path(first).parent / other for other in others)):
            assert (ROOT / path).exists(), f"README.md names {path}"
