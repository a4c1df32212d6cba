"""What docs/simulator.md and those below it show runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import nested
from docs.documents import ROOT
from gpu.sim.faults import FAULTS

DOCUMENTS = [ROOT / "docs/simulator.md", *sorted((ROOT / "docs/simulator").glob("*.md"))]
EXAMPLES = [
    example
    for path in DOCUMENTS
    for example in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
]
FIXTURE = next(example for example in EXAMPLES if "pytest.fixture" in example)
SERVER, CLIENT = (
    next(example for example in EXAMPLES if name in example) for name in ("serve(", "RemoteWorld(")
)
ALONE = [example for example in EXAMPLES if example not in (FIXTURE, SERVER, CLIENT)]
TESTS = """

def test_all_is_given_back(machine):
    machine.os.close(machine.os.open("/dev/kfd", 2))

def test_a_file_stays_open(machine):
    machine.os.open("/dev/kfd", 2)
"""


@pytest.fixture(autouse=True)
def _needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


@pytest.mark.parametrize("number", range(len(ALONE)))
def test_examples(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(ALONE[number], {})
    assert capsys.readouterr().out


def test_all_faults_are_told() -> None:
    told = (ROOT / "docs/simulator.md").read_text().split("## Faults on purpose")[1]
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", told.split("\n## ")[0], re.MULTILINE)
    forms = {form for row, _ in rows for form in re.findall(r"`([^`]*)`", row)}
    counted = {re.split("[`:]", row)[1]: what for row, what in rows}
    assert counted == {name: kind.counted for name, kind in FAULTS.items()}
    expected = {name for name, kind in FAULTS.items() if not kind.required}
    expected |= {f"{name}:{word}" for name, kind in FAULTS.items() for word in kind.details}
    expected |= {"ioctl:CALL:ANSWER"}
    assert forms == expected


def test_a_served_machine(tmp_path: Path) -> None:
    path = str(tmp_path / "gpu")
    assert "/tmp/simulated-gpu" in SERVER and "/tmp/simulated-gpu" in CLIENT
    client = CLIENT.replace("/tmp/simulated-gpu", path)
    client += "assert remote.os.exists('/dev/kfd')\n"
    run = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {client!r}], check=True)"
    exec(SERVER.replace("/tmp/simulated-gpu", path).replace("...  ", f"{run}  "), {})


def test_the_fixture_finds_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "test_driver.py"
    file.write_text(FIXTURE + TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    found = subprocess.run(
        command, cwd=tmp_path, env=nested.environment(), capture_output=True, text=True, check=False
    )
    assert "12 passed, 6 errors" in found.stdout, found.stdout
    assert "test_all_is_given_back" not in found.stdout
