"""The report of a Mac, rehearsed on the model."""

from __future__ import annotations

import getpass
import json
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.hw_acceptance.cli import main
from tools.hw_acceptance.metal.steps import STEPS
from tools.hw_acceptance.scrub import ROOT


def _run(out: Path, *given: str) -> tuple[int, dict[str, Any]]:
    code = main(["metal", "--out", str(out), *given])
    content: dict[str, Any] = json.loads(out.read_text())
    return code, {each["step"]: each for each in content["results"]}


def test_a_report_tells_of_each_step_and_of_nobody(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("simulated-mac")
    out = tmp_path / "report.json"
    code, results = _run(out, "--sim", "apple8", "--only", "refusals")
    assert (code, [each["outcome"] for each in results.values()]) == (0, ["pass"])
    assert "nothing_of_that_name" in results["refusals"]["facts"]["message"]
    text = out.read_text()
    for word in (str(ROOT), str(Path.home()), platform.node(), getpass.getuser(), sys.prefix):
        if word not in ("root", "/root"):
            assert not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), word


def test_a_step_that_fails_says_why_and_others_run(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("simulated-mac")
    given = "--sim", "apple7,fault=reset@1", "--only", "grids,machine"
    code, results = _run(tmp_path / "report.json", *given)
    assert (code, results["grids"]["outcome"], results["machine"]["outcome"]) == (1, "fail", "pass")
    assert "reset, on purpose" in results["grids"]["reason"]


def test_without_a_mac_nothing_is_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if platform.system() == "Darwin":
        pytest.skip("this is a Mac")
    assert main(["metal", "--out", str(tmp_path / "report.json")]) == 0
    assert "nothing is claimed" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("given", [["--sim", "m1"], ["--sim", "apple7", "--only", "all"]])
def test_what_there_is_not_is_refused(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metal", "--out", str(tmp_path / "report.json"), *given]) == 1
    assert "there are models of" in (text := capsys.readouterr().err) or "the steps are" in text


@pytest.mark.sampled(0)
def test_the_whole_report(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("simulated-mac")
    code, results = _run(tmp_path / "report.json", "--sim", "apple7")
    assert code == 0 and results.keys() == STEPS.keys()
    assert {each["outcome"] for each in results.values()} == {"pass"}
