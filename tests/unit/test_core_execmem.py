from __future__ import annotations

import ctypes
import gc
import platform
import sys

import pytest

from gpu.core import execmem
from gpu.core.errors import InvalidValue, OutOfMemory, Unsupported
from gpu.core.execmem import PAGE_SIZE, CodeBuffer, ExecutableMemory, Protection, Segment

RETURN_42 = {
    "x86_64": bytes.fromhex("b82a000000c3"),  # mov eax, 42; ret
    "aarch64": bytes.fromhex("40058052c0035fd6"),  # mov w0, #42; ret
    "arm64": bytes.fromhex("40058052c0035fd6"),
}[platform.machine()]


def protection(address: int) -> str | None:
    """As in "r-xp", of the mapping of this process there, which may be one with its neighbours."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, flags = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                return flags
    return None


def test_code_runs() -> None:
    code = CodeBuffer(RETURN_42)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(code.address)() == 42
    assert code.address % PAGE_SIZE == 0 and code.size == len(RETURN_42)
    code.close()
    code.close()
    with pytest.raises(InvalidValue, match="closed"):
        _ = code.address


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_segments_get_their_protections_and_are_freed() -> None:
    sizes = {Protection.EXECUTE: PAGE_SIZE + 1, Protection.READ: 3, Protection.WRITE: 5}
    memory = ExecutableMemory([Segment(size, kind) for kind, size in sizes.items()])
    addresses = [memory.address(index) for index in range(3)]
    assert addresses[1] == addresses[0] + 2 * PAGE_SIZE
    assert addresses[2] == addresses[1] + PAGE_SIZE
    memory.write(1, b"abc")
    memory.write(2, b"vwxyz")
    memory.write(2, b"W", offset=1)
    assert [protection(a) for a in addresses] == ["rw-p"] * 3
    memory.seal()
    assert [protection(a) for a in addresses] == ["r-xp", "r--p", "rw-p"]
    assert ctypes.string_at(addresses[1], 4) == b"abc\0"
    assert ctypes.string_at(addresses[2], 6) == b"vWxyz\0"
    del memory
    gc.collect()
    assert protection(addresses[0]) != "r-xp"


def test_writes_are_checked() -> None:
    memory = ExecutableMemory([Segment(8, Protection.WRITE)])
    for offset, size in ((0, 9), (8, 1), (-1, 1)):
        with pytest.raises(InvalidValue, match="do not fit"):
            memory.write(0, bytes(size), offset)
    memory.seal()
    with pytest.raises(InvalidValue, match="sealed"):
        memory.write(0, b"x")


def test_sizes_are_checked() -> None:
    with pytest.raises(InvalidValue, match="0 bytes"):
        CodeBuffer(b"")
    with pytest.raises(OutOfMemory, match="bytes for machine code"):
        ExecutableMemory([Segment(1 << 62, Protection.READ)])
    with pytest.raises(OutOfMemory):
        ExecutableMemory([Segment(1 << 70, Protection.READ)])


def test_an_unknown_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(Unsupported, match="riscv64"):
        CodeBuffer(RETURN_42)


def test_a_refusal_by_the_system_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        @staticmethod
        def mprotect(*_: object) -> int:
            ctypes.set_errno(13)
            return -1

    monkeypatch.setattr(execmem, "_system", Refusing)
    with pytest.raises(Unsupported, match=r"EXECUTE protection.*Permission denied"):
        CodeBuffer(RETURN_42)
