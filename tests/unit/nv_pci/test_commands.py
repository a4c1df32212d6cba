"""`gpu boot` for NVIDIA's cards, as far as it goes without one; and what its document says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.cli.main import main
from gpu.core.config import Context
from gpu.drivers.nv.pci.boot import STEPS
from simulated import own_machines

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


def test_registers_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of the card and of its engines, single ones of arrays, and patterns."""
    with own_machines(), Context(SIM="ga102"):
        names = ["PMC_BOOT_42", "SEC2.FALCON_HWCFG2", "VBIOS_SCRATCH[14]", "*WPR2_ADDR_*"]
        assert main(["regs", "PCI+NV", "get", *names]) == 0
        out = capsys.readouterr().out
        lines = out.splitlines()
        assert lines[0].startswith("PMC_BOOT_42 = 0x172a1000  ")
        assert "ARCHITECTURE 0x17" in lines[0]
        assert lines[1].startswith("SEC2.FALCON_HWCFG2 = 0x80000400")
        assert lines[2:] == [
            "VBIOS_SCRATCH[14] = 0x00000000  VALUE 0x0",
            *(f"WPR2_ADDR_{end} = 0x00000000  VAL 0x0" for end in ("LO", "HI")),
        ]
        assert main(["regs", "PCI+NV", "set", "VBIOS_SCRATCH[20]", "7"]) == 0
        assert "= 0x00000007" in capsys.readouterr().out
        before = tmp_path / "before"
        for text, differs in ((out, 0), (out.replace("[14] = 0x00000000", "[14] = 0x00000009"), 1)):
            before.write_text(text)
            assert main(["regs", "PCI+NV", "diff", str(before)]) == differs
        assert "VBIOS_SCRATCH[14]: 0x00000009 -> 0x00000000" in capsys.readouterr().out
        assert main(["regs", "PCI+NV", "set", "SEC2.FALCON_ENGINE", "1"]) == 1
        assert main(["regs", "PCI+NV", "get", "VBIOS_SCRATCH[64]"]) == 1
        assert main(["regs", "PCI+NV", "get", "NO_SUCH"]) == 1
        told = capsys.readouterr().err
        assert "writing FALCON_ENGINE does something" in told and "64 registers" in told
        assert "no register 'NO_SUCH' in the card's own, GSP, SEC2, FSP" in told
