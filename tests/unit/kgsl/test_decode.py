"""Command streams of Adreno GPUs as text."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from gpu.autogen import adreno_a6xx as a6xx
from gpu.cli.main import main
from gpu.drivers.kgsl.decode import decode_a6xx, register_name
from gpu.drivers.kgsl.pm4 import Header, command, write_registers

LAUNCH = [
    *write_registers(0xA9B0, 1 << 20 | 7 << 7 | 1 << 31, 3),
    *write_registers(0xB990, 3 | 31 << 2),
    *command(a6xx.OPCODES["CP_LOAD_STATE6_FRAG"], 0x01340000, 0x5000, 1),
    *command(a6xx.OPCODES["CP_EXEC_CS"], 0, 4, 2, 1),
    *command(a6xx.OPCODES["CP_EVENT_WRITE"], 4 | 1 << 30, 0x1000, 0, 77),
]


def text(words: list[int], tail: bytes = b"") -> list[str]:
    lines = decode_a6xx(struct.pack(f"<{len(words)}I", *words) + tail)
    assert [line.number for line in lines[: len(words)]] == words
    return [line.text for line in lines]


def test_a_launch_is_told_by_names() -> None:
    shown = text(LAUNCH)
    for wanted in (
        "write 2 registers",
        "  SP_CS_CTRL_REG0: THREADMODE MULTI, FULLREGFOOTPRINT 0x7, THREADSIZE THREAD128,"
        " MERGEDREGS 0x1",
        "  SP_CS_CTRL_REG1: SHARED_SIZE 0x3, CONSTANTRAMMODE CONSTLEN_128",
        "  HLSQ_CS_NDRANGE_0: KERNELDIM 0x3, LOCALSIZEX 0x1f",
        "CP_LOAD_STATE6_FRAG",
        "  STATE_TYPE ST6_SHADER, STATE_SRC SS6_DIRECT, STATE_BLOCK SB6_CS_SHADER, NUM_UNIT 0x4",
        "  EXT_SRC_ADDR 0x5000",
        "CP_EXEC_CS",
        "  EVENT CACHE_FLUSH_TS, TIMESTAMP 0x1",
    ):
        assert wanted in shown, "\n".join(shown)


def test_every_register_of_the_table_has_its_name() -> None:
    names = {offset: register_name(offset) for offset, _, _ in a6xx.REGISTERS.values()}
    assert set(names.values()) <= {*a6xx.REGISTERS} and None not in names.values()
    assert register_name(0xA9B5) == "SP_CS_OBJ_START_HI" and register_name(0xFFFFF) is None


def test_damage_is_told_and_nothing_is_guessed() -> None:
    parity = text([0x70268000 ^ 1 << 15, *command(0x26)])
    assert parity == ["not known: no header of a packet, its parity is wrong", "CP_WAIT_FOR_IDLE"]
    assert text([0xC0004600]) == ["not known: no header of a packet, of type 12"]
    assert text(command(0x26), b"\1\2") == ["CP_WAIT_FOR_IDLE", "no word"]
    assert text([Header(7, 0x36, 3).word, 5])[0] == "CP_LOAD_STATE6, cut off: 3 words should follow"
    assert text(command(0x7F, 9)) == ["not known: opcode 0x7f", ""]
    assert text(write_registers(0x3FFFF, 1))[1] == "  register 0x3ffff: not known"


def test_any_bytes_are_decoded_word_by_word() -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 7, 64, 999):
        data = rng.integers(0, 256, size, np.uint8).tobytes()
        lines = decode_a6xx(data)
        assert b"".join(line.number.to_bytes(line.size, "little") for line in lines) == data
        assert [line.offset for line in lines] == list(range(0, size, 4))


def test_the_command_decodes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stream.txt"
    file.write_text(" ".join(f"{word:08x}" for word in LAUNCH))
    assert main(["decode", "--kind", "a6xx", str(file)]) == 0
    out = capsys.readouterr().out
    assert "     0  40a9b002  write 2 registers" in out and "CP_EXEC_CS" in out
