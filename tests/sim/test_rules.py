"""Rules of strict models: every row names a check and a test, and no check is left out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from docs.documents import functions

ROOT = Path(__file__).resolve().parents[2]
MODELS = {
    "gpu/sim/nv": ("nv-rules", "nv-pci-rules"),
    "gpu/sim/kgsl": ("kgsl-rules",),
    "gpu/sim/usb": ("usb-rules",),
}
TEXTS = {
    name: (ROOT / f"docs/reference/{name}.md").read_text()
    for names in MODELS.values()
    for name in names
}
ROW = re.compile(
    r"^\| (?P<rule>.+) \| (?P<source>\S.*) \| `(?P<check>[\w./]+:[\w.]+)`"
    r" \| `(?P<test>[\w./]+:\w+)`(?:: (?P<case>.+))? \|$",
    re.MULTILINE,
)
SECTION = re.compile(r"^## (.+) \((\d+)\)$", re.MULTILINE)
LEAST = {"usb-rules": 60}
# What ends a call or a channel, or records a violation; the functions that only build such errors.
REFUSALS = {
    *("check", "graphics", "pbdma", "class_error", "RmError", "SysError"),
    *("ChannelError", "KernelFault", "_error", "violation"),
    *("Halt", "Refused", "FspError", "_refuse"),
    *("_break", "CpError", "HardwareHang", "OtherFault", "_violation", "_refuse_unset"),
}
BUILDERS = {
    *("gpu/sim/usb/stockfw.py:StockFirmware._break", "gpu/sim/usb/chip.py:BridgeChip.violation"),
    *(
        f"gpu/sim/kgsl/{name}"
        for name in (
            *("chip/dispatch.py:Dispatcher._violation", "chip/gpu.py:Ring._stand"),
            "chip/gpu.py:AdrenoGpu.__init__",
            *("chip/dispatch.py:Dispatcher._refuse_unset", "chip/processor.py:Processor.violation"),
        )
    ),
} | {
    f"gpu/sim/nv/{name}"
    for name in (
        *("chip/errors.py:pbdma", "chip/errors.py:class_error", "chip/errors.py:graphics"),
        *("rm/status.py:check", "rm/objects.py:expect", "chip/copyengine.py:CopyEngine._error"),
        *("pci/silicon.py:Silicon.violation", "pci/registers.py:Registers.refuse"),
        *("pci/gsp.py:Gsp._run_fmc", "pci/rm.py:Rm._guarded", "pci/rm.py:Rm._refuse"),
        *("pci/falcon.py:Falcon._fail", "pci/securecode.py:SecureCode._run"),
    )
}


def sections(text: str) -> dict[str, tuple[int, list[re.Match[str]]]]:
    """Section -> (how many rows it says it has, its rows)."""
    parts = SECTION.split(text)[1:]
    return {
        name: (int(count), list(ROW.finditer(body)))
        for name, count, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


ROWS = [row for text in TEXTS.values() for _, rows in sections(text).values() for row in rows]


@cache
def words(path: Path) -> set[object]:
    return {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}


def calls(node: ast.AST) -> set[str]:
    """Names of what a function calls."""
    made = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return {f.id if isinstance(f, ast.Name) else getattr(f, "attr", "") for f in made}


@pytest.mark.parametrize("name", TEXTS)
def test_sections_count_their_rows(name: str) -> None:
    found = sections(TEXTS[name])
    assert {part: count for part, (count, _) in found.items()} == {
        part: len(rows) for part, (_, rows) in found.items()
    }
    total, rows = re.search(r"the (\d+) rules", TEXTS[name]), sum(n for n, _ in found.values())
    assert total is not None and int(total[1]) == rows >= LEAST.get(name, 80)
    for part, (_, listed) in found.items():
        assert max(Counter(row["rule"] for row in listed).values()) == 1, part


def test_checks_exist() -> None:
    for row in ROWS:
        where, _, name = row["check"].partition(":")
        assert name in functions(ROOT / where), row["rule"]


def test_tests_exist() -> None:
    for row in ROWS:
        where, _, name = row["test"].partition(":")
        assert name.startswith("test_") and name in functions(ROOT / where), row["rule"]
        assert row["case"] is None or row["case"] in words(ROOT / where), row["rule"]


@pytest.mark.parametrize("model", MODELS)
def test_whatever_refuses_is_named(model: str) -> None:
    named = {row["check"] for row in ROWS} | BUILDERS
    left = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in (ROOT / model).rglob("*.py")
        for name, node in functions(path).items()
        if isinstance(node, ast.FunctionDef) and calls(node) & REFUSALS
    }
    assert left <= named, left - named
