"""Torch checkpoints: what torch saves is read as torch reads it, and nothing is executed."""

from __future__ import annotations

import collections
import io
import os
import pickle
import random
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.core.dtype import dtypes, from_torch_dtype
from gpu.core.errors import FormatError, GpuError
from gpu.nn.state import torch_load
from gpu.runtime.execute import storage
from gpu.tensor.tensor import Tensor

torch = pytest.importorskip("torch", reason="needs torch: module torch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")

NAMES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64",
]  # fmt: skip


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    def saved(value: object, **options: object) -> Path:
        path = tmp_path / "saved.pt"
        torch.save(value, path, _use_new_zipfile_serialization=request.param, **options)
        return path

    return saved


def _bits(tensor: Any) -> bytes:
    whole = tensor.detach().contiguous()
    data: bytes = whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""
    return data


def _check(ours: Any, theirs: Any) -> None:
    """Compares values that were loaded with what was saved, all the way down."""
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, Tensor)
        assert ours.dtype is from_torch_dtype(theirs.dtype)
        assert ours.shape == tuple(theirs.shape)
        assert ours.numpy().tobytes() == _bits(theirs)
        assert ours.requires_grad is None
    elif isinstance(theirs, dict):
        assert type(ours) is dict and list(ours) == list(theirs)
        for key in theirs:
            _check(ours[key], theirs[key])
    elif isinstance(theirs, torch.Size):
        assert ours == tuple(theirs)
    elif isinstance(theirs, list | tuple):
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            _check(a, b)
    else:
        assert type(ours) is type(theirs) and ours == theirs


def test_every_dtype(save: Callable[..., Path]) -> None:
    data = torch.arange(64, dtype=torch.uint8)
    value = {
        name: (data % 2 if name == "bool" else data).view(getattr(torch, name)).clone()
        for name in NAMES
    }
    _check(torch_load(save(value)), value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nested_values(save: Callable[..., Path], protocol: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    value = {
        "model": model.state_dict(),
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(4, 3)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "fused": None, "params": [0, 1]}],
        },
        "plain": [1, -(2**40), 2**70, 2.5, "naïve", b"\0\xff", None, True, (), (1,), (1, (2, 3))],
        "set": {1, 2},
        "frozen": frozenset({"a"}),
        "ordered": collections.OrderedDict([("z", 1), ("a", 2)]),
        ("tuple", 3): torch.Size([2, 3]),
        7: {},
    }
    _check(torch_load(save(value, pickle_protocol=protocol)), value)


def test_dtypes_and_devices(save: Callable[..., Path]) -> None:
    loaded = torch_load(save([torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1)]))
    assert loaded == [dtypes.bfloat16, "cpu", "cuda:1"]


def test_views(save: Callable[..., Path]) -> None:
    x = torch.arange(120.0).reshape(4, 5, 6)
    value = {
        "transposed": x.transpose(0, 2),
        "sliced": x[1:3, ::2, 1::3],
        "row": x[2],
        "column": x[:, 3, 1],
        "element": x[1, 2, 3],
        "expanded": x[:1, 0, :].expand(7, 6),
        "broadcast": torch.tensor(3.0).expand(1000, 1000),
        "strange": x.as_strided((2, 3, 1), (7, 2, 10**9), 5),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "empty view": x[4:],
        "parameter": torch.nn.Parameter(x[0].t()),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    _check(torch_load(save(value)), value)


def test_tensors_with_attributes(tmp_path: Path) -> None:
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(3))
    tensor.note, parameter.note = "text", [1]
    torch.save([tensor, parameter], tmp_path / "a")
    _check(torch_load(tmp_path / "a"), [torch.ones(2), torch.ones(3)])


def test_shared_storages_share_memory(save: Callable[..., Path]) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    value = {"x": x, "again": x, "row": x[1], "alias": x.view(12), "t": x.t(), "t2": x.t()}
    loaded: Any = torch_load(save(value), device="CPU")
    _check(loaded, value)
    start = {name: storage(tensor._node).memory for name, tensor in loaded.items()}
    assert loaded["x"] is loaded["again"]
    assert start["alias"] == start["x"] and start["row"] == start["x"] + 16
    assert start["t"] == start["t2"] != start["x"]
    assert loaded["t"]._node is not loaded["t2"]._node  # two leaves, if gradients are asked for


def test_contiguous_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(100.0)}, tmp_path / "a")
    loaded: Any = torch_load(tmp_path / "a", device="CPU")
    buffer = storage(loaded["x"]._node)
    assert isinstance(buffer._owner, np.ndarray)
    assert buffer.read_only and not buffer._owner.flags.owndata
    assert (loaded["x"] + 1).numpy()[-1] == 100.0


def test_other_devices(save: Callable[..., Path]) -> None:
    x = torch.arange(6).reshape(2, 3)
    loaded: Any = torch_load(save([x, x.t(), x[1], x.t()]), device="PYTHON")
    assert [t.device for t in loaded] == ["PYTHON"] * 4
    _check(loaded, [x, x.t(), x[1], x.t()])


def _rewritten(path: Path, change: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """The same archive, compressed as said, with the contents of some members changed."""
    target = path.with_suffix(".changed")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, change.get(name.partition("/")[2], old.read(name)))
    return target


def test_compressed_members(tmp_path: Path) -> None:
    value = {"a": torch.arange(1000.0), "b": torch.zeros(3).t()}
    torch.save(value, tmp_path / "a.pt")
    _check(torch_load(_rewritten(tmp_path / "a.pt", {}, zipfile.ZIP_DEFLATED)), value)


def test_big_endian(tmp_path: Path) -> None:
    values = np.arange(6).reshape(2, 3)
    kinds = ("uint8", "uint16", "int32", "float64")
    torch.save([torch.tensor(values).to(getattr(torch, kind)) for kind in kinds], tmp_path / "a.pt")
    big = {
        f"data/{index}": values.astype(np.dtype(kind).newbyteorder(">")).tobytes()
        for index, kind in enumerate(kinds)
    }
    loaded: Any = torch_load(_rewritten(tmp_path / "a.pt", {"byteorder": b"big", **big}))
    assert [tensor.tolist() for tensor in loaded] == [values.tolist()] * 4
    with pytest.raises(FormatError, match="b'middle'"):
        torch_load(_rewritten(tmp_path / "a.pt", {"byteorder": b"middle"}))


# Hostile pickles.


class _Calls:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: object):
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.call


class _Restores:
    """Pickles as an object that is made by a call and then takes a state."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[object, ...], state: object):
        self.parts = function, arguments, state

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


FORBIDDEN = [
    (_Calls(os.system, "touch {}"), r"posix\.system"),
    (_Calls(subprocess.Popen, ["touch", "{}"]), r"\.Popen"),
    (_Calls(eval, "open('{}', 'w')"), r"builtins?__?\.eval|__builtin__\.eval"),
    (_Calls(getattr, [], "append"), r"getattr"),
    (_Calls(torch.load, "{}"), r"torch\.serialization\.load"),
    (_Calls(torch.hub.load, "{}", "x"), r"torch\.hub\.load"),
    (torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear"),
    (_Restores(collections.OrderedDict, (), [("a", 1)]), "sets the state"),
    (_Restores(set, ([1],), {"a": 1}), "sets the state of a set"),
    (torch.ones(2).to_sparse(), "_rebuild_sparse"),
    (collections.Counter("abc"), r"collections\.Counter"),
]


@pytest.mark.parametrize(("value", "message"), FORBIDDEN, ids=[f[1] for f in FORBIDDEN])
def test_other_globals_are_refused(save: Callable[..., Path], value: Any, message: str) -> None:
    canary = Path(save({}).parent) / "canary"
    if isinstance(value, _Calls):
        function, arguments = value.call
        texts = [a.format(canary) if isinstance(a, str) else a for a in arguments]
        value = _Calls(function, *texts)
    with pytest.raises(FormatError, match=message) as caught:
        torch_load(save({"fine": torch.ones(1), "bad": value}))
    assert "refused" in str(caught.value)
    assert not canary.exists()


def _load_pickle(tmp_path: Path, data: bytes, **members: bytes) -> object:
    with zipfile.ZipFile(tmp_path / "made.pt", "w") as archive:
        archive.writestr("root/data.pkl", data)
        for name, content in members.items():
            archive.writestr(f"root/data/{name.removeprefix('_')}", content)
    return torch_load(tmp_path / "made.pt")


def _tensor_pickle(
    size: object = (2,),
    stride: object = (1,),
    offset: object = 0,
    numel: object = 2,
    key: object = "0",
    tag: object = "storage",
) -> bytes:
    """The pickle of a float32 tensor, with any values in the place of the right ones."""

    class _Storage:
        pass

    class _Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            if isinstance(obj, _Storage):
                return (tag, torch.FloatStorage, key, "cpu", numel)
            return None

    target = io.BytesIO()
    arguments: tuple[object, ...] = (
        _Storage(),
        offset,
        size,
        stride,
        False,
        collections.OrderedDict(),
    )
    _Pickler(target, 2).dump(_Calls(torch._utils._rebuild_tensor_v2, *arguments))
    return target.getvalue()


def test_made_up_tensor_is_right(tmp_path: Path) -> None:
    loaded: Any = _load_pickle(
        tmp_path, _tensor_pickle(), _0=np.array([1, 2], np.float32).tobytes()
    )
    assert loaded.tolist() == [1.0, 2.0]


OUT_OF_BOUNDS = [
    ({"offset": 1}, "reaches element 2"),
    ({"offset": -1}, "offset is -1"),
    ({"offset": 0.0}, "offset is 0.0"),
    ({"size": (3,)}, "reaches element 2"),
    ({"stride": (2,)}, "reaches element 2"),
    ({"stride": (-1,)}, "stride is -1"),
    ({"size": (1 << 62, 4), "stride": (0, 0)}, "any memory"),
    ({"size": (1 << 40,), "stride": (1 << 40,)}, "reaches element"),
    ({"size": (2, 2)}, "1 strides"),
    ({"size": (1,) * 33, "stride": (1,) * 33}, "33 dimensions"),
    ({"size": 2}, "size is 2"),
    ({"size": (True,)}, "size is True"),
    ({"numel": 3}, "has 8 bytes"),
    ({"numel": 1 << 62}, "has 8 bytes"),
    ({"numel": "2"}, "size of storage '0' is '2'"),
    ({"key": "1"}, "no member 'root/data/1'"),
    ({"key": "../data.pkl"}, "no member"),
    ({"key": 0}, "no storage"),
    ({"tag": "module"}, "no storage"),
]


@pytest.mark.parametrize(("wrong", "message"), OUT_OF_BOUNDS)
def test_tensors_stay_in_their_storage(tmp_path: Path, wrong: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        _load_pickle(tmp_path, _tensor_pickle(**wrong), _0=bytes(8))


def test_overlapping_views_are_refused(tmp_path: Path) -> None:
    data = _tensor_pickle(size=(100, 100), stride=(1, 1), numel=200)
    with pytest.raises(FormatError, match="overlapping"):
        _load_pickle(tmp_path, data, _0=bytes(800))


NONSENSE = [
    (b"", "malformed"),
    (b"\x80\x02", "malformed"),
    (b"\xf0.", "malformed"),
    (b"N0.", "STOP|0 values|one"),
    (b"NN.", "instead of one"),
    (b"0.", "empty stack"),
    (b"(0N0.", "instead of one|empty"),
    (b"t.", "no start"),
    (b"N(1t.", "no start"),
    (b"h\x05.", "value 5 is used before"),
    (b"Na.", "empty stack"),
    (b"NNa.", "appended to a NoneType"),
    (b"}(Nu.", "without a value"),
    (b"}(]Nu.", "key of type list"),
    (b"}((((NtttNu.", "key of type tuple|key"),
    (b"(lN\x81.", "called|calls"),
    (b"NNR.", "instead of a tuple"),
    (b"N)R.", "calls None"),
    (b"Pabc\n.", "PERSID"),
    (b"(I1\nios\nsystem\n.", "INST"),
    (b"(cos\nsystem\no.", r"os\.system"),
    (b"(No.", "OBJ"),
    (b"\x82\x01.", "EXT1"),
    (b"N)}\x92.", "NEWOBJ_EX"),
    (b"\x8c\x02os\x8c\x06system\x93.", r"os\.system"),
    (b"NN\x93.", "not text"),
    (b"ctorch\nFloatStorage\n)R.", "calls torch.FloatStorage"),
    (b"ctorch\nSize\n(I1\nI2\ntR.", "2 arguments"),
    (b"ccollections\nOrderedDict\n(]Nata" + b"R.", "malformed|pair|arguments|appended"),
    (b"\x8b" + (1000).to_bytes(4, "little") + b"\x7f" * 1000 + b".", "bits"),
    (b"\x8b\xff\xff\xff\x7f.", "malformed"),
    (b"\x8e" + b"\xff" * 7 + b"\x7f.", "malformed"),
    (b"I" + b"9" * 5000 + b"\n.", "malformed"),
    (b"r\xff\xff\xff\xff.", "empty stack"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), NONSENSE)
def test_nonsense_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        _load_pickle(tmp_path, data)


def test_memo_index_allocates_nothing(tmp_path: Path) -> None:
    assert _load_pickle(tmp_path, b"Nr\xff\xff\xff\xff.") is None


def test_depth_is_no_recursion(tmp_path: Path) -> None:
    loaded: Any = _load_pickle(tmp_path, b"N" + b"\x85" * 20_000 + b".")
    depth = 0
    while loaded is not None:
        loaded, depth = loaded[0], depth + 1
    assert depth == 20_000


def test_lists_in_themselves(tmp_path: Path) -> None:
    loaded: Any = _load_pickle(tmp_path, b"]q\0h\0a.")
    assert loaded[0] is loaded


def test_calls_that_multiply_memory_are_stopped(tmp_path: Path) -> None:
    text = b"X" + (1 << 20).to_bytes(4, "little") + b"x" * (1 << 20)
    encode = b"c_codecs\nencode\nh\0X\6\0\0\0latin1\x86R"
    with pytest.raises(FormatError, match="out of proportion"):
        _load_pickle(tmp_path, text + b"q\0" + b"0]" + (encode + b"a") * 100 + b".")


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"\x80\x02}.", pickle.dumps({"a": 1}), b"PK\3\4"):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(FormatError):
            torch_load(tmp_path / "a")
    with zipfile.ZipFile(tmp_path / "b", "w") as archive:
        archive.writestr("x/data.pkl", b"N.")
        archive.writestr("x/constants.pkl", b"N.")
    with pytest.raises(FormatError, match="TorchScript"):
        torch_load(tmp_path / "b")
    with zipfile.ZipFile(tmp_path / "c", "w") as archive:
        archive.writestr("weights.npy", b"")
    with pytest.raises(FormatError, match=r"FOLDER/data\.pkl"):
        torch_load(tmp_path / "c")


def test_cut_legacy_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    torch.save({"a": torch.ones(100)}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    for length in (20, 100, len(data) - 401, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError):
            torch_load(path)


def test_random_damage_raises_nothing_else(save: Callable[..., Path]) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    path = save({"x": x, "t": x.t(), "n": [1, (2.5, "s")], "p": torch.nn.Parameter(x[0])})
    original, generator, refused = path.read_bytes(), random.Random(7), 0
    for _ in range(400):
        data = bytearray(original)
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(min(700, len(data)) if generator.random() < 0.8 else len(data))
            if generator.random() < 0.8:
                data[at] = generator.randrange(256)
            else:
                del data[at : at + generator.randint(1, 20)]
        path.write_bytes(data)
        try:
            torch_load(path)
        except GpuError:
            refused += 1
    assert refused > 100


def test_random_pickles_raise_nothing_else(tmp_path: Path) -> None:
    original, generator, refused = _tensor_pickle(), random.Random(9), 0
    opcodes = [bytes([code]) for code in b"(.012FIJKLMNPQRSTUVX]}abcdeghijloqrstu)\x80\x81\x85\x86"]
    for _ in range(800):
        data = bytearray(original)
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(len(data))
            data[at : at + generator.randrange(2)] = generator.choice(opcodes)
        try:
            _load_pickle(tmp_path, bytes(data), _0=bytes(8))
        except GpuError:
            refused += 1
    assert refused > 500
