"""Headers of Adreno's packets. Those written out here are of captures of an a630 (Mesa's tests)."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.core.errors import InvalidValue
from gpu.drivers.kgsl.pm4 import (
    COMMAND,
    REGISTER_WRITE,
    Header,
    command,
    write_registers,
)

LIMITS = {REGISTER_WRITE: (1 << 18, 1 << 7), COMMAND: (1 << 7, 1 << 14)}


@pytest.mark.parametrize(
    ("header", "word"),
    [
        (Header(COMMAND, 0x26, 0), 0x70268000),  # CP_WAIT_FOR_IDLE
        (Header(COMMAND, 0x65, 1), 0x70E50001),  # CP_SET_MARKER
        (Header(COMMAND, 0x3F, 3), 0x70BF8003),  # CP_INDIRECT_BUFFER
        (Header(REGISTER_WRITE, 0xBB08, 1), 0x40BB0801),
        (Header(REGISTER_WRITE, 0x8E04, 1), 0x408E0401),
        (Header(REGISTER_WRITE, 0xC10, 32), 0x400C1020),
        (Header(COMMAND, 0x43, 39), 0x70438027),
        (Header(COMMAND, 0x34, 87), 0x70340057),
    ],
)
def test_headers_are_those_of_real_streams(header: Header, word: int) -> None:
    assert (header.word, Header.parse(word)) == (word, header)


@pytest.mark.parametrize("kind", LIMITS)
def test_every_header_reads_back_and_a_flipped_bit_is_seen(kind: int) -> None:
    rng = np.random.default_rng(kind)
    numbers, counts = LIMITS[kind]
    for _ in range(500):
        header = Header(kind, int(rng.integers(numbers)), int(rng.integers(counts)))
        word = header.word
        assert Header.parse(word) == header
        bit = int(rng.integers(28))
        assert Header.parse(word ^ 1 << bit) is None, f"bit {bit} of {word:#x}"


def test_words_of_other_types_begin_no_packet() -> None:
    for kind in {*range(16)} - {REGISTER_WRITE, COMMAND}:
        assert Header.parse(kind << 28 | 0x8000) is None


def test_what_does_not_fit_is_refused() -> None:
    for kind, (numbers, counts) in LIMITS.items():
        for header in (Header(kind, numbers, 1), Header(kind, 1, counts), Header(kind, -1, 1)):
            with pytest.raises(InvalidValue, match=f"type {kind}"):
                _ = header.word
    with pytest.raises(InvalidValue, match="not 3"):
        _ = Header(3, 1, 1).word


def test_packets_are_a_header_and_its_words() -> None:
    assert write_registers(0xA9B4, 0x1000, 0x2) == [
        Header(REGISTER_WRITE, 0xA9B4, 2).word,
        0x1000,
        2,
    ]
    assert command(0x26) == [0x70268000]
