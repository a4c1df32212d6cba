"""`gpu.save` and `gpu.load` by suffix; numpy's files against numpy, and hostile ones refused."""

from __future__ import annotations

import io
import random
import zipfile
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, dtypes
from gpu.core import dtype as gpu_dtype
from gpu.core.errors import DTypeError, FormatError, GpuError, InvalidType, InvalidValue

IN_NUMPY = [d for d in gpu_dtype.ALL if d.bits != 8 or not d.is_float]
IN_NUMPY.remove(dtypes.bfloat16)
SHAPES = [(), (0,), (5,), (2, 3), (2, 0, 3), (2, 3, 4)]


def array(shape: tuple[int, ...], dtype: str) -> Any:
    return np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", IN_NUMPY, ids=str)
def test_npy_both_ways(tmp_path: Path, dtype: gpu_dtype.DType, shape: tuple[int, ...]) -> None:
    x = array(shape, dtype.name)
    for number, data in enumerate((x, np.asfortranarray(x), x.astype(x.dtype.newbyteorder(">")))):
        path = tmp_path / f"{number}.npy"
        np.save(path, data)
        found = gpu.load(path)
        assert found.dtype is dtype and found.shape == data.shape
        np.testing.assert_array_equal(found.numpy(), data)
    gpu.save(Tensor(x), tmp_path / "ours.npy")
    theirs = np.load(tmp_path / "ours.npy", allow_pickle=False)
    assert theirs.dtype == x.dtype and theirs.shape == shape
    np.testing.assert_array_equal(theirs, x)


def test_tensors_by_name(tmp_path: Path, device: str) -> None:
    whole = {"a": Tensor([[1.0, 2.0]], device=device).T, "b.c": Tensor([3], device=device)}
    for suffix in (".npz", ".safetensors", ".NPZ"):
        path = tmp_path / f"w{suffix}"
        gpu.save(whole, path)
        found = gpu.load(path, device)
        assert set(found) == set(whole)
        for name, tensor in whole.items():
            assert found[name].device == device and found[name].dtype is tensor.dtype
            assert found[name].tolist() == tensor.tolist()
    assert np.load(tmp_path / "w.npz")["a"].tolist() == [[1.0], [2.0]]
    np.savez_compressed(tmp_path / "z.npz", x=np.arange(1000))
    assert gpu.load(tmp_path / "z.npz")["x"].sum().item() == 499500
    first = (tmp_path / "w.npz").read_bytes()
    gpu.save(whole, tmp_path / "w.npz")
    assert (tmp_path / "w.npz").read_bytes() == first


def test_checkpoints_of_torch_are_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: module torch is not installed")
    torch.save({"w": torch.ones(2, 3)}, tmp_path / "w.pt")
    assert gpu.load(tmp_path / "w.pt")["w"].tolist() == [[1.0] * 3] * 2


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    x = Tensor([1.0])
    for value, name, error, message in [
        (x, "x.txt", InvalidValue, "must be one of .safetensors, .npy"),
        (x, "x", InvalidValue, "the suffix says"),
        ({"x": x}, "x.pt", InvalidValue, "read only"),
        ({"x": x}, "x.npy", InvalidType, "use .npz"),
        (x, "x.npz", InvalidType, "tensors by name"),
        ({"x": 1}, "x.safetensors", InvalidType, "tensors by name, .* got int 1 under 'x'"),
        ({"x": x, 3: x}, "x.npz", InvalidType, "got the name 3, which is no str"),
        (x.cast("bfloat16"), "x.npy", DTypeError, "bfloat16"),
    ]:
        with pytest.raises(error, match=message):
            gpu.save(value, tmp_path / name)  # type: ignore[arg-type]
        assert not (tmp_path / name).exists()
    with pytest.raises(InvalidValue, match="the suffix says"):
        gpu.load(tmp_path / "x.h5")
    with pytest.raises(FileNotFoundError):
        gpu.load(tmp_path / "missing.npy")
    with pytest.raises(FileNotFoundError, match="no_folder'"):
        gpu.save(x, tmp_path / "no_folder" / "x.npy")


def content(header: str, data: bytes = b"\0" * 8, version: int = 1) -> bytes:
    text = header.encode("latin-1")
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"


def test_versions_and_spaces(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        (tmp_path / "x.npy").write_bytes(content(GOOD, version=version))
        assert gpu.load(tmp_path / "x.npy").tolist() == [0, 0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        content(GOOD, b"\0" * 7),
        content(GOOD, b"\0" * 9),
        content(GOOD, version=4),
        content(GOOD.replace("<f4", "|O")),
        content(GOOD.replace("<f4", "<c8")),
        content(GOOD.replace("<f4", "<U1")),
        content(GOOD.replace("'<f4'", "[('a', '<f4')]")),
        content(GOOD.replace("(2,)", "(-2,)")),
        content(GOOD.replace("(2,)", "(" + "9" * 30 + ",)")),
        content(GOOD.replace("(2,)", "(" + "2," * 70 + ")")),
        content(GOOD.replace("(2,)", "(4611686018427387904, 2, 0)"), b""),
        content(GOOD.replace("False", "__import__('os')")),
        content("(" * 9000),
        content(GOOD + " " * 20000),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + GOOD.encode(),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(FormatError):
        gpu.load(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", data)
    with pytest.raises(FormatError):
        gpu.load(tmp_path / "x.npz")


def test_pickles_are_not_run(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(FormatError, match=r"none of an array of numbers|no dtype"):
        gpu.load(tmp_path / "x.npy")


def test_changed_bytes_give_values_or_a_typed_error(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.arange(6, dtype="int16").reshape(2, 3))
    whole, rng = bytearray(file.getvalue()), random.Random(5)
    for _ in range(300):
        data = whole.copy()
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "x.npy").write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            assert isinstance(gpu.load(tmp_path / "x.npy").numpy(), np.ndarray)
        except GpuError as error:
            assert isinstance(error, FormatError)


def test_an_archive_of_no_tensors(tmp_path: Path) -> None:
    gpu.save({}, tmp_path / "x.npz")
    assert gpu.load(tmp_path / "x.npz") == {}
    assert np.load(tmp_path / "x.npz").files == []


@pytest.mark.parametrize("keys", [*permutations(["descr", "fortran_order", "shape"])])
def test_keys_of_a_header_in_any_order(tmp_path: Path, keys: tuple[str, ...]) -> None:
    values: dict[str, Any] = {"descr": "<f4", "fortran_order": True, "shape": (2, 1)}
    header = repr({key: values[key] for key in keys})
    for text in (header, header.replace("'", '"'), header.replace("}", " , }")):
        (tmp_path / "x.npy").write_bytes(content(text + " \n"))
        assert gpu.load(tmp_path / "x.npy").tolist() == np.load(tmp_path / "x.npy").tolist()
    for key in keys:
        (tmp_path / "x.npy").write_bytes(content(repr({k: values[k] for k in keys if k != key})))
        with pytest.raises(FormatError, match="none of an array"):
            gpu.load(tmp_path / "x.npy")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("name", ["a\0b", "\ud800", "é" * 32766, "", "a/b", "..", "é" * 32765])
def test_names_come_back_or_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    try:
        gpu.save({name: Tensor([1])}, path)
    except InvalidValue as error:
        assert "rename it" in str(error) and not path.exists()
        assert name in ("a\0b", "\ud800", "é" * 32766)
    else:
        assert [*gpu.load(path)] == [name]


def test_two_members_of_one_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", content(GOOD))
        archive.writestr("a", content(GOOD))
    with pytest.raises(FormatError, match="one name"):
        gpu.load(tmp_path / "x.npz")


@pytest.mark.parametrize("path", [None, 3, b"x.npy", io.BytesIO(), Path])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(InvalidType, match=r"a str or a pathlib\.Path"):
        gpu.load(path)
    with pytest.raises(InvalidType, match=r"a str or a pathlib\.Path"):
        gpu.save(Tensor([1]), path)
    with pytest.raises(InvalidValue, match="NUL"):
        gpu.load("x\0.npy")
