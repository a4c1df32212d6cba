"""The committed machine code: it is what the tool makes, and it stands on its own."""

from __future__ import annotations

import importlib.util
import struct
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest

from gpu.core.hoststore_code import CODE, ENTRIES, LLVMLITE

TOOL = Path(__file__).resolve().parents[2] / "tools/hoststore.py"
_DSB_ST, _RET = 0xD5033E9F, 0xD65F03C0


@cache
def _tool() -> ModuleType:
    specification = importlib.util.spec_from_file_location("hoststore_tool", TOOL)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _installed() -> str:
    try:
        return version("llvmlite")
    except PackageNotFoundError:
        return "none"


@pytest.mark.skipif(
    _installed() != LLVMLITE, reason=f"made by llvmlite {LLVMLITE}; installed is {_installed()}"
)
@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_the_tool_makes_the_same_code(architecture: str) -> None:
    tool = _tool()
    made = tool.code_of(tool.compile_for(tool.ARCHITECTURES[architecture]))
    assert made == (CODE[architecture], ENTRIES[architecture])


def test_every_architecture_has_every_function() -> None:
    assert CODE.keys() == ENTRIES.keys() == {"x86_64", "aarch64"}
    for offsets in ENTRIES.values():
        assert list(offsets) == ["fence", "kick", "patch", "copy_wc", "spin"]


def _arm64(name: str) -> list[int]:
    """The instruction words from one entry to the next."""
    offsets = ENTRIES["aarch64"]
    starts = [*sorted(offsets.values()), len(CODE["aarch64"])]
    begin = offsets[name]
    data = CODE["aarch64"][begin : starts[starts.index(begin) + 1]]
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def test_arm64_fences_reach_devices() -> None:
    """``dsb st`` and nothing weaker: encodings from the Arm ARM, C6.2 (DSB, DMB)."""
    assert _arm64("fence")[:2] == [_DSB_ST, _RET]
    assert _arm64("kick").count(_DSB_ST) == 2
    assert _arm64("copy_wc").count(_DSB_ST) == 1
    words = [word for name in ENTRIES["aarch64"] for word in _arm64(name)]
    barriers = [word for word in words if word & 0xFFFFF09F == 0xD503309F]  # DSB and DMB
    assert set(barriers) == {_DSB_ST}


def test_arm64_copies_by_pairs_that_no_cache_keeps() -> None:
    assert sum(word & 0xFFC00000 == 0xAC000000 for word in _arm64("copy_wc")) == 2  # stnp q, q


def test_arm64_code_refers_to_nothing_outside() -> None:
    """No address of data is made or loaded, and every call stays within."""
    code = CODE["aarch64"]
    words = struct.unpack(f"<{len(code) // 4}I", code)
    for at, word in enumerate(words):
        assert word & 0x1F000000 != 0x10000000, f"adr or adrp at {4 * at:#x}"
        assert word & 0x3B000000 != 0x18000000, f"ldr of a literal at {4 * at:#x}"
        if word & 0x7C000000 == 0x14000000:  # b, bl
            target = at + (word & 0x3FFFFFF) - (word >> 25 & 1) * (1 << 26)
            assert 0 <= target < len(words), f"branch at {4 * at:#x} leaves the code"


@pytest.mark.parametrize(("name", "fences"), [("fence", 1), ("kick", 2), ("copy_wc", 1)])
def test_x86_fences_are_there(name: str, fences: int) -> None:
    offsets = ENTRIES["x86_64"]
    starts = [*sorted(offsets.values()), len(CODE["x86_64"])]
    data = CODE["x86_64"][offsets[name] : starts[starts.index(offsets[name]) + 1]]
    assert data.count(b"\x0f\xae\xf8") == fences  # sfence: Intel SDM 2B
