"""`gpu decode` of what GSP and FSP are given, and of ROMs."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from random import Random

import pytest

from gpu.autogen.nv import gsp
from gpu.cli.main import main
from gpu.core.errors import FormatError
from gpu.drivers.nv.pci.decode import decode_cot, decode_elements, decode_meta, decode_vbios
from gpu.drivers.nv.pci.msgq import make_elements


def fields(lines: object) -> dict[str, list[str]]:
    """Words of each line behind its offset, by the field's name."""
    return {str(line).split()[1]: str(line).split()[2:] for line in lines}  # type: ignore[attr-defined]


def test_wpr_meta() -> None:
    """Each field, with what is wrong."""
    rng = Random(3)
    meta = gsp.GspFwWprMeta(magic=gsp.GSP_FW_WPR_META_MAGIC, revision=2)
    meta.frtsOffset, meta.flags = rng.getrandbits(40), 1
    meta.verified = gsp.GSP_FW_WPR_META_VERIFIED
    lines = decode_meta(bytes(meta))
    found = fields(lines)
    assert len(found) == len(gsp.GspFwWprMeta._fields_)
    assert found["magic"] == [hex(meta.magic)] and found["revision"] == ["0x2", "wrong"]
    assert found["frtsOffset"] == [hex(meta.frtsOffset)]
    assert found["verified"][1:] == ["by", "booter"]
    assert [line.split()[0] for line in lines][:2] == ["0x0000", "0x0008"]
    with pytest.raises(FormatError, match="GspFwWprMeta"):
        decode_meta(bytes(255))


@pytest.mark.parametrize("with_words", [False, True])
def test_a_chain_of_trust(with_words: bool) -> None:
    cot = gsp.NVDM_PAYLOAD_COT(version=2, size=ctypes.sizeof(gsp.NVDM_PAYLOAD_COT))
    cot.frtsVidmemSize = 1 << 20
    head = struct.pack("<II", 3 << 30, 0x7E | 0x10DE << 8 | 0x14 << 24) if with_words else b""
    found = fields(decode_cot(head + bytes(cot)))
    assert found["version"] == ["0x2"] and found["frtsVidmemSize"] == ["0x100000"]
    assert found["publicKey"][1:] == ["(384", "bytes)"]
    assert ("NVDM" in found) is with_words


def test_an_answer_of_fsps() -> None:
    words = struct.pack("<5I", 3 << 30, 0x7E | 0x10DE << 8 | 0x15 << 24, 0, 0x14, 0xA1)
    assert fields(decode_cot(words))["errorCode"] == ["0xa1"]
    with pytest.raises(FormatError, match="kind 0x13"):
        decode_cot(words[:7] + b"\x13" + words[8:])
    with pytest.raises(FormatError, match="8 bytes at least"):
        decode_cot(words[:7])


def test_elements() -> None:
    """Two messages, the second of two elements, whose sum is then wrong."""
    first = make_elements(gsp.NV_VGPU_MSG_FUNCTION_GSP_SET_SYSTEM_INFO, b"abc", 0, 0)
    second = bytearray(make_elements(gsp.NV_VGPU_MSG_FUNCTION_SET_REGISTRY, bytes(5000), 1, 1))
    lines = [str(line) for line in decode_elements(first + bytes(second) + bytes(4096))]
    text = "\n".join(lines)
    assert "GSP_SET_SYSTEM_INFO" in text and "SET_REGISTRY" in text
    assert "616263 (3 bytes)" in text and "(5000 bytes)" in text
    assert text.count("right") == 2 and lines[-1] == "0x3000  no more messages"
    second[0x90] ^= 1
    assert "wrong" in "\n".join(map(str, decode_elements(bytes(second))))
    assert "cut off" in "\n".join(map(str, decode_elements(bytes(second[:4096]))))
    with pytest.raises(FormatError, match="no message at 0x0"):
        decode_elements(bytes(4096))


def test_a_rom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rom = next(iter((Path(__file__).parents[2] / "fuzz/corpus/nv-vbios").glob("ifr-3")))
    text = "\n".join(map(str, decode_vbios(rom.read_bytes())))
    assert "0x2400  image" in text and text.count("more of the VBIOS") == 2
    assert "3, of fuse versions 0xd" in text and "9, engines 0x400" in text
    path = tmp_path / "rom"
    path.write_bytes(rom.read_bytes())
    assert main(["decode", "--kind", "nv-vbios", str(path)]) == 0
    assert capsys.readouterr().out.rstrip("\n") == text
    with pytest.raises(FormatError, match="VBIOS"):
        decode_vbios(b"abcd")
