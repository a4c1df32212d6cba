"""Packed machine code with its PTX, and what is none."""

from __future__ import annotations

import pytest

from gpu.compiler.toolchain.nvbinary import NvBinary, with_lines
from gpu.core.errors import FormatError

BINARY = NvBinary(b"\x7fELF and more", "// größer\n.version 7.0\n")


def test_what_is_packed_comes_back() -> None:
    assert NvBinary.unpack(BINARY.pack()) == BINARY


@pytest.mark.parametrize(
    ("lib", "message"),
    [
        (b"", "at least, not 0"),
        (b"\x7fELF" + bytes(100), "begins with b'NVBINARY'"),
        (BINARY.pack()[:-1], "in all, not"),
        (BINARY.pack() + b"x", "in all, not"),
        (NvBinary(b"cubin", "").pack(), "is an ELF file"),
        (BINARY.pack()[:-3] + b"\xff\xff\n", "is no text"),
    ],
)
def test_what_is_none_is_refused(lib: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        NvBinary.unpack(lib)


def test_a_log_is_shown_with_the_lines_it_names() -> None:
    log = "ptxas input, line 2; error : Unknown\nptxas fatal : aborted\nline 99; error"
    want = "ptxas input, line 2; error : Unknown\n    foo.bar;\nptxas fatal : aborted"
    assert with_lines(log, "first\n\tfoo.bar;\n") == f"{want}\nline 99; error"
