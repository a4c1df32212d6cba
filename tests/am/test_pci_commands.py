"""`gpu boot` and `gpu regs` on a simulated card, and tensors on one that was booted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.cli.main import main
from gpu.core.config import Context
from gpu.drivers.am.pci.steps import STEPS
from simulated import own_machines

ROOT = Path(__file__).resolve().parents[2]


def call(capsys: pytest.CaptureFixture[str], *arguments: str, wanted: int = 0) -> str:
    with own_machines(), Context(SIM="gfx1100"):
        assert main([*arguments]) == wanted
    captured = capsys.readouterr()
    return captured.out if not wanted else captured.out + captured.err


def test_the_list_needs_no_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["boot", "PCI+AMD", "--list"]) == 0
    out = capsys.readouterr().out
    for step in STEPS:
        assert f"{step.name:10} {step.about}" in out


def test_the_document_has_the_steps() -> None:
    text = (ROOT / "docs/drivers/am-pci.md").read_text()
    for step in STEPS:
        needs = ", ".join(step.needs) or "nothing"
        row = f"| {step.name} | {step.about} | {needs} | {', '.join(step.promises)} |"
        assert f"{row} {step.seconds:g} s |" in text, row


def test_the_document_has_what_a_step_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Accesses of the mailbox of power management, as a trace tells them."""
    text = (ROOT / "docs/drivers/am-pci.md").read_text()
    out = call(capsys, "boot", "PCI+AMD", "--until", "smu", "--trace").splitlines()
    lines = [line.strip() for line in out if "C2PMSG_66" in line or "C2PMSG_82 <-" in line]
    shown = "\n".join(lines[-6:])
    assert shown.count("C2PMSG_66") == 3 and shown in text, shown


def test_boot_walks_to_the_end_or_to_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(capsys, "boot", "PCI+AMD").splitlines()
    assert [line.split()[1] for line in lines] == [step.name for step in STEPS]
    assert "GC[0] 11.0.0, 24576 MiB" in lines[1] and lines[2].endswith("cold")
    lines = call(capsys, "boot", "PCI+AMD", "--until", "gmc").splitlines()
    assert lines[-1].split()[1] == "gmc"
    told = call(capsys, "boot", "PCI+AMD", "--until", "gmd", wanted=1)
    assert "no boot step 'gmd'" in told and "clocks" in told


def test_a_trace_names_registers(capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "boot", "PCI+AMD", "--until", "soc", "--trace")
    assert "MP0.MP0_SMN_C2PMSG_81 -> 0x00000000" in out
    assert "NBIF.RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN <- 0x00000001" in out


def test_steps_wait_for_enter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "")
    call(capsys, "boot", "PCI+AMD", "--until", "state", "--step")
    assert [text.split()[2] for text in asked[:3]] == ["claim:", "discovery:", "state:"]


def test_registers_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = call(capsys, "regs", "PCI+AMD", "get", "GC.SCRATCH_REG*", "CP_STAT")
    assert out.count("GC.SCRATCH_REG") == 8 and "GC.CP_STAT = 0x" in out
    out = call(capsys, "regs", "PCI+AMD", "set", "scratch_reg0", "0x1234")
    assert "GC.SCRATCH_REG0 = 0x00001234" in out
    saved = tmp_path / "saved"
    saved.write_text("GC.SCRATCH_REG0 = 0x00000007  SCRATCH_REG0 0x7\nGC.CP_STAT = 0x00000000\n")
    out = call(capsys, "regs", "PCI+AMD", "diff", str(saved), wanted=1)
    assert out.splitlines()[0].startswith("GC.SCRATCH_REG0: 0x00000007 -> 0x")
    saved.write_text("nonsense\n")
    assert "line 1" in call(capsys, "regs", "PCI+AMD", "diff", str(saved), wanted=1)
    out = call(capsys, "regs", "PCI+AMD", "watch", "CP_STAT", "--seconds", "0.2")
    assert out.count("GC.CP_STAT") == 1


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("get", "GC.CP_STATE"), "no register"),
        (("get", "ZZZ*"), "no register fits"),
        (("get", "MMVM_INVALIDATE_ENG17_SEM"), "--force"),
        (("set", "GRBM_SOFT_RESET", "1"), "--force"),
        (("set", "MP0_SMN_C2PMSG_35", "1"), "--force"),
        (("set", "SCRATCH_REG0", "0x100000000"), "32 bits"),
    ],
)
def test_wrong_uses(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert told in call(capsys, "regs", "PCI+AMD", *arguments, wanted=1)


def test_semaphores_are_not_taken_by_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "regs", "PCI+AMD", "get", "MMHUB.MMVM_INVALIDATE_ENG17_*")
    assert "ENG17_ACK" in out and "_SEM" not in out


@pytest.mark.parametrize("text", ["KFD+AMD", "CPU", "NV"])
def test_other_devices_are_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert "PCI+AMD" in call(capsys, "boot", text, wanted=1)


_PROGRAM = """
import numpy as np
from gpu import Tensor
a = np.random.default_rng(1).standard_normal((24, 40), dtype=np.float32)
b = np.random.default_rng(2).standard_normal((40, 16), dtype=np.float32)
assert ((Tensor(a) + 1).numpy() == a + 1).all()
assert np.allclose((Tensor(a) @ Tensor(b)).numpy(), a @ b, atol=1e-4)
wanted = np.exp(a) / np.exp(a).sum(1, keepdims=True)
assert np.allclose(Tensor(a).softmax(1).sum(0).numpy(), wanted.sum(0), atol=1e-4)
print(Tensor(a).device, Tensor([1, 2, 3]).max().item())
"""


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_tensors_are_computed_on_a_card_that_was_booted(chip: str) -> None:
    environment = {**os.environ, "SIM": chip, "DEV": "PCI+AMD"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["AMD", "3"]
