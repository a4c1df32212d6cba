"""The commands as they are called, on a machine without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.hw_acceptance.cli import main
from tools.hw_acceptance.environment import nodes, sandbox
from tools.hw_acceptance.markdown import to_markdown
from tools.hw_acceptance.model import Outcome, Report, Result, write_report
from tools.hw_acceptance.runner import ROOT


def test_without_a_gpu_nothing_is_run_or_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, control = tmp_path / "out", tmp_path / "nvidiactl"
    arguments = ["run", "--folder", str(tmp_path), "--out", str(out), "--control", str(control)]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert f"there is no NVIDIA GPU here: {control} does not exist." in told
    assert "nothing is claimed" in told and not out.exists()


def test_a_folder_that_is_not_prepared_is_an_error_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control = tmp_path / "nvidiactl"
    control.touch()
    arguments = ["run", "--folder", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--control", str(control)]) == 1
    assert "make it with `python -m tools.hw_acceptance prepare`" in capsys.readouterr().err
    assert main([*arguments, "--control", str(control), "--only", "13"]) == 1
    assert "no step or group '13'" in capsys.readouterr().err


def test_a_report_becomes_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(started="2026-11-22T10:00:00+00:00", force={"doorbell": "BAR1"})
    files = {"/proc/driver/nvidia/version": "NVRM version: 580.159.04\nGCC version"}
    facts = {"system": "Linux", "sandbox": "Firecracker", "files": files}
    report.add(Result("environment", "default", "vendor", Outcome.PASS, facts=facts))
    named = {"device": "NVIDIA H200"}
    report.add(Result("health before", "default", "vendor", Outcome.PASS, facts=named))
    wrong = [{"name": "sum", "ok": False, "details": "3"}]
    report.add(
        Result(
            *("10 store", "default", "ladder", Outcome.FAIL, "a | b", 1.5),
            checks=wrong,
            kernel_log=["1.0 NVRM: Xid 31"],
        )
    )
    write_report(tmp_path / "report.json.gz", report)
    assert main(["report", str(tmp_path / "report.json.gz"), "--docs", str(tmp_path)]) == 0
    document = tmp_path / "2026-11-22-nvidia-h200.md"
    assert str(document) in capsys.readouterr().out
    text = document.read_text()
    assert text == to_markdown(report) and text.startswith("# NVIDIA H200, 2026-11-22\n")
    assert "- driver: NVRM version: 580.159.04\n" in text
    assert "| 10 store | fail | 1.5 | a \\| b |" in text
    assert "- sum: WRONG (3)" in text and "- kernel: `1.0 NVRM: Xid 31`" in text
    assert "- doorbell: BAR1 served" in text
    assert json.loads(document.with_suffix(".json").read_text())["results"][2]["reason"] == "a | b"


def test_sandboxes_are_told_apart() -> None:
    assert sandbox("4.4.0", "Linux version 4.4.0") == "gVisor"
    assert sandbox("6.18.44-fc-v310-gpu", "Linux version 6.18.44") == "Firecracker"
    assert sandbox("6.1.0-18-amd64", "Linux version 6.1.0 (Debian)") == "unknown"


def test_nodes_are_described(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "nvidia-caps/nvidia-cap1").touch()
    (tmp_path / "null").touch()
    found = nodes(tmp_path, ("nvidia*", "nvidia*/*"))
    assert sorted(Path(path).name for path in found) == ["nvidia-cap1", "nvidiactl"]
    assert "mode 100644 owner" in found[str(tmp_path / "nvidiactl")]


BLOCKED = ("cffi", "usb", "tqdm", "llvmlite", "ml_dtypes", "torch", "cupy")
CODE = f"""
import importlib, pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Refuse())
sys.path.append({str(ROOT)!r})
package = importlib.import_module("tools.hw_acceptance")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def test_it_needs_numpy_and_the_standard_library_alone() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
