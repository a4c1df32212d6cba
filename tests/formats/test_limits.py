"""Files made to cost more than files of their size do: refused early, with the limit in words."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bounded import bounded
from gpu.core.errors import FormatError
from gpu.nn.state import tar_extract, torch_load
from gpu.tensor.formats import pickle_machine
from gpu.tensor.formats import torch as torch_format

SECONDS = 20.0  # of the processor; each takes well below one
TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\nq\0((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3"
    b"\0\0\0cpuK\2tQK\0K\2\x85K\1\x85\x89ccollections\nOrderedDict\n)Rtq\1"
)
"""A function and its arguments, at 0 and 1 of the memo."""


@pytest.fixture(autouse=True)
def _bound() -> Iterator[None]:
    with bounded(SECONDS):
        yield


def load(folder: Path, data: bytes) -> Any:
    path = folder / "made.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", data)
        archive.writestr("a/data/0", bytes(8))
    return torch_load(path)


def colliding(count: int) -> Iterator[bytes]:
    """Tuples of -1 and -2, which have one hash in CPython: each would be compared with all."""
    for number in range(count):
        bits = (number >> place & 1 for place in range(16))
        yield b"(" + b"".join(b"J" + struct.pack("<i", -1 - bit) for bit in bits) + b"t"


PICKLES = {
    "copies of the top": (b"N" + b"2" * 10_000_000 + b".", r"refused.*DUP, byte 1\)"),
    "values": (b"N" * 2_000_000 + b".", r"more than 1,048,576 values .*byte 104857"),
    "marks": (b"(" * 1_000_000 + b"N.", "nested more than 16,384 deep"),
    "for nothing": (b"N0" * 1_000_000 + b"N.", "more than 65,536 values are pushed and dropped"),
    "groups for nothing": (b"N" + (b"(" + b"N" * 999 + b"1") * 1000 + b".", "dropped again"),
    "a memo": (b"N" + b"\x94" * 70_000 + b".", "more than 65,536 values are remembered"),
    "tuples in tuples": (b"N" + b"\x85" * 70_000 + b".", "more than 65,536 tuples"),
    "tensors": (TENSOR + b"R](" + b"h\0h\1R" * 9_000 + b"e.", "out of proportion"),
    "a dict's keys": (b"}(" + b"".join(k + b"N" for k in colliding(9000)) + b"u.", "4,096 tuples"),
    "a set's keys": (b"\x8f(" + b"".join(colliding(9000)) + b"\x90.", "4,096 tuples"),
    "integers as keys": (
        b"}("
        + b"".join(b"\x8a\x10" + (k * (2**61 - 1) << 40).to_bytes(16, "little") + b"N"
                   for k in range(1, 9000)) + b"u.",
        "an integer of over 64 bits as a key",
    ),
    "a long integer": (b"\x8b" + struct.pack("<i", 1 << 20) + b"\7" * (1 << 20) + b".", "bits"),
    "a long decimal": (b"I" + b"9" * 5_000_000 + b"\n.", "long line"),
    "a long fraction": (b"F" + b"9" * 5_000_000 + b"\n.", "long line"),
    "a claim": (b"X\xff\xff\xff\x7fa.", r"claims 2,147,483,647 bytes at 5, there are 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_bounded(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that take seconds to reach are lower here."""
    monkeypatch.setattr(pickle_machine, "_MAX_MEMO", 1 << 16)
    monkeypatch.setattr(pickle_machine, "_MAX_TUPLES", 1 << 16)
    monkeypatch.setattr(torch_format, "_LEAST_LIMIT", 1 << 22)
    data, message = PICKLES[name]
    with pytest.raises(FormatError, match=message):
        load(tmp_path, data)


def test_what_picklers_write_is_far_below(tmp_path: Path) -> None:
    """Long lists, many keys, deep nests, and tuples that hold themselves."""
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    own: tuple[list[Any]] = ([],)
    own[0].append(own)
    value = {
        "numbers": list(range(50_000)),
        "flags": [True] * 50_000,
        "row": tuple(range(70_000)),
        "table": {number: str(number) for number in range(50_000)},
        "places": {(row, column): 1 for row in range(40) for column in range(40)},
        "deep": deep,
        "large": [2**64 - 1, -(2**63), 2**2000],
    }
    for protocol in (2, 4):
        assert load(tmp_path, pickle.dumps(value, protocol)) == value
        (again,) = load(tmp_path, pickle.dumps(own, protocol))
        assert again[0][0] is again


def test_many_tensors_are_loaded(tmp_path: Path) -> None:
    """As many as a large checkpoint has for its size: each with a name and a view of its own."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    base = torch.arange(1000.0)
    value = {f"layers.{i}.weight": base[i % 900 :][:4].reshape(2, 2) for i in range(3_000)}
    torch.save(value, tmp_path / "many.pt")
    loaded: Any = torch_load(tmp_path / "many.pt", device="CPU")
    assert list(loaded) == list(value)
    for name, tensor in islice(value.items(), 0, None, 97):
        assert loaded[name].tolist() == tensor.tolist()


def extended(text: bytes) -> bytes:
    """A tar archive of one file, with such an extended header."""
    header = tarfile.TarInfo("header")
    header.size, header.type = len(text), tarfile.XHDTYPE
    file = tarfile.TarInfo("file")
    file.size = 1
    return b"".join((
        header.tobuf(tarfile.USTAR_FORMAT), text, bytes(-len(text) % 512),
        file.tobuf(tarfile.USTAR_FORMAT), b"x".ljust(512, b"\0"), bytes(1024),
    ))  # fmt: skip


@pytest.mark.parametrize(
    "text", [b"1" * 60_000, b"60011 comment=" + b"1" * 59_996 + b"\n", b"1" * (1 << 17)]
)
def test_numbers_in_a_tar_header_are_short(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(extended(text))
    with pytest.raises(FormatError, match=r"extended header of .* bytes at 512 is too long"):
        tar_extract(tmp_path / "a.tar")


def test_extended_headers_of_tar_are_read(tmp_path: Path) -> None:
    target = io.BytesIO()
    name = "folder/" + "1234567890" * 30 + "é"
    with tarfile.open(fileobj=target, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = 3, 1.25
        archive.addfile(info, io.BytesIO(b"abc"))
    (tmp_path / "a.tar").write_bytes(target.getvalue())
    assert tar_extract(tmp_path / "a.tar")[name].numpy().tobytes() == b"abc"
