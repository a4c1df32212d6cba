"""`gpu boot` for NVIDIA's cards, as far as it goes without one; and what its document says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.cli.main import main
from gpu.drivers.nv.pci.boot import STEPS

ROOT = Path(__file__).resolve().parents[3]


def test_the_list_needs_no_card(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, what steps do, what they need and promise."""
    assert main(["boot", "PCI+NV", "--list"]) == 0
    out = capsys.readouterr().out
    for step in STEPS:
        assert f"{step.name:10} {step.about}" in out
        assert f"promises {', '.join(step.promises)}; {step.seconds:g} s" in out


def test_the_document_has_the_steps() -> None:
    """Row by row, as the code has them."""
    text = (ROOT / "docs/drivers/nv-pci.md").read_text()
    for step in STEPS:
        needs = ", ".join(step.needs) or "nothing"
        row = f"| {step.name} | {step.about} | {needs} | {', '.join(step.promises)} |"
        assert f"{row} {step.seconds:g} s |" in text, row


@pytest.mark.parametrize("device", ("NV", "NVK+NV", "CPU", "KFD+AMD"))
def test_what_is_not_reached_so_is_refused(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what is."""
    assert main(["boot", device]) == 1
    told = capsys.readouterr()
    assert "PCI+AMD, USB+AMD and PCI+NV" in told.out + told.err


def test_registers_by_name_are_amds_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """In this version."""
    assert main(["regs", "PCI+NV", "get", "PMC_BOOT_0"]) == 1
    told = capsys.readouterr()
    assert "of AMD's cards alone" in told.out + told.err
