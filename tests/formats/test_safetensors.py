"""Safetensors files: written, read, compared with the reference package, and refused."""

from __future__ import annotations

import json
import random
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.core import dtype as gpu_dtype
from gpu.core.dtype import dtypes
from gpu.core.errors import FormatError, GpuError, InvalidType, InvalidValue
from gpu.nn.state import safe_load, safe_load_metadata, safe_save
from gpu.runtime.execute import storage
from gpu.runtime.prepared import Counters
from gpu.tensor.tensor import Tensor


def _file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def _bits(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _samples() -> dict[str, Tensor]:
    """A tensor of each dtype, of all bit patterns that its bytes may have."""
    random_bytes = np.random.default_rng(1).integers(0, 256, 48, np.uint8)
    samples = {}
    for dtype in gpu_dtype.ALL:
        data = random_bytes % 2 if dtype is dtypes.bool else random_bytes
        samples[f"one {dtype.name}"] = Tensor(data.view(dtype.np).reshape(2, -1))
    samples["scalar"] = Tensor(2.5)
    samples["empty"] = Tensor(np.zeros((0, 3), np.int16))
    samples["naïve ☃"] = Tensor([1, 2, 3])
    return samples


def test_round_trip_keeps_bits_shapes_and_metadata(tmp_path: Path) -> None:
    tensors, path = _samples(), tmp_path / "all.safetensors"
    safe_save(tensors, path, {"format": "pt", "ü": ""})
    loaded = safe_load(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert _bits(loaded[name]) == _bits(tensor)
    info = safe_load_metadata(path)
    assert info.metadata == {"format": "pt", "ü": ""}
    assert info.data_start % 8 == 0
    assert info.tensors["one int16"][:2] == (dtypes.int16, (2, 12))


def test_lazy_and_strided_tensors_are_saved_by_value(tmp_path: Path) -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    safe_save({"t": x.transpose(0, 1), "sum": x + 1, "constant": Tensor(7)}, tmp_path / "a")
    loaded = safe_load(tmp_path / "a")
    assert loaded["t"].tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert loaded["sum"].tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert loaded["constant"].item() == 7


def test_saving_leaves_nothing_behind_on_errors(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    safe_save({"a": Tensor([1])}, path)
    before = path.read_bytes()
    with pytest.raises(InvalidType, match="'b'"):
        safe_save({"b": 1}, path)  # type: ignore[dict-item]
    for name in ("__metadata__", "\ud800"):
        with pytest.raises(InvalidValue, match="cannot be saved"):
            safe_save({name: Tensor([1])}, path)
    with pytest.raises(InvalidType, match="metadata"):
        safe_save({}, path, {"epoch": 3})  # type: ignore[dict-item]
    with pytest.raises(FileNotFoundError):
        safe_save({"a": Tensor([1])}, tmp_path / "missing" / "file")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_cpu_tensors_are_views_that_keep_the_mapping_alive(tmp_path: Path) -> None:
    path = tmp_path / "a"
    safe_save({"a": Tensor(np.arange(1000.0)), "b": Tensor([1.0])}, path)
    launches = Counters.launches
    loaded = safe_load(path, device="CPU")
    a = loaded.pop("a")
    owner = storage(a._node)._owner
    assert isinstance(owner, np.ndarray)
    assert not owner.flags.owndata and not owner.flags.writeable
    assert storage(a._node).read_only
    alive = weakref.ref(owner.base)  # the mapping
    del loaded, owner
    path.unlink()
    assert alive() is not None and a.numpy()[-1] == 999.0
    assert Counters.launches == launches
    del a
    assert alive() is None


def test_views_of_a_file_are_not_written_to(tmp_path: Path) -> None:
    safe_save({"a": Tensor([1.0])}, tmp_path / "a")
    buffer = storage(safe_load(tmp_path / "a", device="CPU")["a"]._node)
    with pytest.raises(InvalidValue, match="read-only"):
        buffer.copy_in(np.zeros(1, np.float32))


def test_unaligned_and_transferred_tensors_are_copied() -> None:
    data = b"\1" + np.array([1, 2], np.float32).tobytes()
    file = _file({"u": _entry("U8", [1], [0, 1]), "f": _entry("F32", [2], [1, 9])}, data)
    assert (safe_load(file)["f"] + 1).tolist() == [2.0, 3.0]
    elsewhere = safe_load(file, device="PYTHON")["f"]
    assert elsewhere.device == "PYTHON" and elsewhere.tolist() == [1.0, 2.0]


def test_bools_other_than_0_and_1_are_true() -> None:
    loaded = safe_load(_file({"b": _entry("BOOL", [3], [0, 3])}, b"\0\1\xff"))["b"]
    assert loaded.cast("int32").tolist() == [0, 1, 1]


def test_saving_over_the_file_that_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "a"
    safe_save({"w": Tensor([1.0, 2.0])}, path)
    loaded = safe_load(path)["w"]
    safe_save({"w": loaded * 10}, path)
    assert loaded.tolist() == [1.0, 2.0]
    assert safe_load(path)["w"].tolist() == [10.0, 20.0]


def test_reference_package_reads_and_writes_the_same(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("safetensors")
    import safetensors.numpy as reference

    plain = {
        name: tensor
        for name, tensor in _samples().items()
        if tensor.dtype.name not in ("bfloat16", "fp8e4m3", "fp8e5m2")
    }
    safe_save(plain, tmp_path / "ours", {"a": "b"})
    theirs = reference.load_file(tmp_path / "ours")
    assert theirs.keys() == plain.keys()
    for name, tensor in plain.items():
        assert theirs[name].tobytes() == _bits(tensor) and theirs[name].shape == tensor.shape
    reference.save_file({n: t.numpy() for n, t in plain.items()}, tmp_path / "theirs", {"a": "b"})
    assert safe_load_metadata(tmp_path / "theirs").metadata == {"a": "b"}
    ours = safe_load(tmp_path / "theirs")
    assert {n: _bits(t) for n, t in ours.items()} == {n: _bits(t) for n, t in plain.items()}


def test_reference_package_reads_narrow_floats(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("safetensors")
    need("torch")
    import safetensors.torch as reference

    values = [0.5, -2.0, 448.0]
    names = ("bfloat16", "fp8e4m3")
    safe_save({n: Tensor(values, dtype=n) for n in names}, tmp_path / "ours")
    for tensor in reference.load_file(tmp_path / "ours").values():
        assert tensor.float().tolist() == values


HUGE = 1 << 62
# What is wrong with a file, the file, and what the message has to name.
MALFORMED = [
    ("empty", b"", "at least 8 bytes"),
    ("length past the end", struct.pack("<Q", 100) + b"{}", "length is 100"),
    ("length over the limit", struct.pack("<Q", 100_000_001), "100,000,001"),
    ("length of 64 bits", b"\xff" * 8 + b"{}", "18,446,744"),
    ("not UTF-8", _file(b'{"\xff": 1}'), "UTF-8"),
    ("not JSON", _file(b"{]"), "not JSON"),
    ("digits", _file(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
    ("depth", _file(b'{"a":' + b"[" * 200_000), "nested"),
    ("list", _file([]), "begins with"),
    ("text before", _file(b" {}"), "begins with"),
    ("duplicate", _file(b'{"a":{},"a":{}}'), "'a' twice"),
    ("duplicate field", _file(b'{"a":{"dtype":"U8","dtype":"U8"}}'), "'dtype' twice"),
    ("surrogate", _file({"\ud800": _entry()}), "Unicode"),
    ("entry", _file({"a": 3}), "tensor 'a' is 3"),
    ("field missing", _file({"a": {"dtype": "U8"}}), "'shape'"),
    ("field added", _file({"a": {**_entry(), "x": 1}}), "'x'"),
    ("dtype unknown", _file({"a": _entry("F33")}), "'F33'"),
    ("dtype no text", _file({"a": _entry([])}), r"dtype is \[\]"),
    ("shape no list", _file({"a": _entry(shape=2)}), "shape is 2"),
    ("shape negative", _file({"a": _entry(shape=[-1])}), "holds -1"),
    ("shape float", _file({"a": _entry(shape=[2.0])}), "holds 2.0"),
    ("shape bool", _file({"a": _entry(shape=[True])}), "holds True"),
    ("shape text", _file({"a": _entry(shape=["2"])}), "holds '2'"),
    ("shape huge", _file({"a": _entry(shape=[HUGE, HUGE])}), "larger than any memory"),
    ("shape huge but empty", _file({"a": _entry(shape=[HUGE, 0, 8], offsets=[0, 0])}), "memory"),
    ("shape wraps", _file({"a": _entry(shape=[1 << 63])}), "2\\^63"),
    ("dimensions", _file({"a": _entry(shape=[1] * 33, offsets=[0, 4])}, bytes(4)), "33 dimensions"),
    ("offsets one", _file({"a": _entry(offsets=[0])}), "data_offsets"),
    ("offsets reversed", _file({"a": _entry(offsets=[8, 0])}), r"\[8, 0\]"),
    ("offsets no list", _file({"a": _entry(offsets={})}), "data_offsets is {}"),
    ("size", _file({"a": _entry(offsets=[0, 4])}, bytes(4)), "takes 8"),
    ("range", _file({"a": _entry()}, bytes(7)), "end at 8"),
    ("trailing data", _file({"a": _entry()}, bytes(9)), "end at 8"),
    ("data of no tensor", _file({}, b"x"), "end at 0"),
    ("start", _file({"a": _entry(offsets=[1, 9])}, bytes(9)), "start at 1"),
    ("overlap", _file({"a": _entry(), "b": _entry(offsets=[4, 12])}, bytes(12)), "overlaps"),
    ("gap", _file({"a": _entry(), "b": _entry(offsets=[9, 17])}, bytes(17)), "gap"),
    ("metadata", _file({"__metadata__": []}), r"__metadata__ is \[\]"),
    ("metadata value", _file({"__metadata__": {"k": 1}}), r"__metadata__\['k'\] is 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"), [m[1:] for m in MALFORMED], ids=[m[0] for m in MALFORMED]
)
def test_malformed_files_are_refused_by_name(data: bytes, message: str) -> None:
    for function in (safe_load, safe_load_metadata):
        with pytest.raises(FormatError, match=message) as caught:
            function(data)
        assert len(str(caught.value)) < 600


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="not a regular file"):
        safe_load(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match="at least 8 bytes"):
        safe_load(tmp_path / "empty")


def test_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    safe_save(_samples(), tmp_path / "a", {"k": "v"})
    original = (tmp_path / "a").read_bytes()
    header = 8 + struct.unpack("<Q", original[:8])[0]
    generator, refused = random.Random(5), 0
    tokens = [b"{", b"}", b"[", b"]", b",", b"0", b"-1", b"9" * 30, b'"', b"null", b"\xff", b"1e9"]
    for _ in range(1500):
        data = bytearray(original)
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(header)
            match generator.randrange(4):
                case 0:
                    data[at] = generator.randrange(256)
                case 1:
                    data[at : at + generator.randint(1, 9)] = generator.choice(tokens)
                case 2:
                    del data[at : at + generator.randint(1, 30)]
                case _:
                    del data[len(data) - generator.randint(1, 99) :]
        try:
            safe_load(bytes(data))
        except GpuError:
            refused += 1
    assert refused > 1000
