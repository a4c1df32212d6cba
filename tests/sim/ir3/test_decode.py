"""The decoder of ir3 and its text, against Mesa's disassembler."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from gpu.sim.isa.ir3.decode import UnknownInstruction, decode
from gpu.sim.isa.ir3.text import text_of
from sim.ir3.words import mesa_lines, random_word

SHOWN = 2_000
UNNAMED = re.compile(r"table of floats|condition|a form of shfl")
"""What we refuse and Mesa writes as a number."""


@pytest.fixture(autouse=True)
def mesa_is_there(need: Callable[[str], None]) -> None:
    need("tinymesa")


def compare(count: int, seed: int) -> int:
    """Decodes random words; how many of them both know."""
    rng, same = random.Random(seed), 0
    words = [random_word(rng) for _ in range(count)]
    for word, line in zip(words, mesa_lines(words), strict=True):
        text, _, comment = line.strip().partition("\t;")
        knows = not re.search("no match|WARNING|no display", line)
        knows &= not re.search(r", ,|,$|\s,", text)  # a source that it has no name for
        try:
            ours = text_of(decode(word))
        except UnknownInstruction as error:
            assert not knows or UNNAMED.search(error.message), (hex(word), line, error.message)
            continue
        if "no field" not in comment:  # a slip of Mesa's tables for dp4acc and wmm
            assert knows, (hex(word), line, ours)
        assert ours == text.rstrip(), hex(word)
        same += 1
    return same


def test_words_read_as_mesa_reads_them() -> None:
    assert compare(SHOWN, 0) > SHOWN // 5


@pytest.mark.slow
def test_many_words_read_as_mesa_reads_them() -> None:
    assert sum(compare(5_000, seed) for seed in range(1, 9)) > 10_000


def test_what_is_no_instruction_is_named() -> None:
    with pytest.raises(
        UnknownInstruction, match=r"slot 7: 0xa0000.* is no instruction.*category 5"
    ):
        decode(5 << 61, 7)
    with pytest.raises(UnknownInstruction, match=r"slot 0: 0x40.*bits 8 and 9") as caught:
        decode(2 << 61 | 0x100)
    assert caught.value.word == 2 << 61 | 0x100
