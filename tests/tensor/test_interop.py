"""Memory shared with numpy, torch and anyone else: what is copied, what is not, and who owns it."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from gpu import Tensor, array_api
from gpu.core.dtype import ALL, DType, dtypes
from gpu.core.errors import (
    DTypeError,
    FormatError,
    GpuError,
    InvalidType,
    InvalidValue,
    NumberOverflow,
    ShapeError,
    Unsupported,
)
from gpu.runtime.prepared import Counters
from gpu.tensor import dlpack
from tensor.reference import torch


def computed(device: str = "CPU") -> Tensor:
    return Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device=device).realize()


def address(x: Tensor) -> int:
    return int(np.asarray(x).ctypes.data)


# numpy.


def test_asarray_lends_and_array_copies() -> None:
    x = computed()
    lent, copied = np.asarray(x), np.array(x)
    assert lent.ctypes.data == address(x) and not lent.flags.writeable
    assert np.asarray(x.T).ctypes.data == address(x) and np.asarray(x.T).strides == (4, 12)
    copied += 1
    assert copied.tolist() == (x + 1).tolist() and lent.tolist() == x.tolist()
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.asarray(x, copy=False).ctypes.data == address(x)
    assert np.asarray(x + 1).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_lent_memory_outlives_the_tensor_and_is_never_written() -> None:
    x = computed()
    lent = np.asarray(x)
    x += 1
    x.realize()
    assert lent.tolist() == [[0, 1, 2], [3, 4, 5]]
    del x
    gc.collect()
    others = [Tensor.full((2, 3), float(i)).realize() + 1 for i in range(4)]
    assert [other.sum().item() for other in others] and lent.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_masks_of_numpy_are_not_lost() -> None:
    array = np.ma.masked_greater(np.arange(6.0).reshape(2, 3), 3)
    for take in (
        Tensor,
        array_api.asarray,
        Tensor.ones(2, 3).add,
        Tensor.ones(2, 3).assign,
        lambda masked: Tensor(masked[1, 2]),
    ):
        with pytest.raises(InvalidValue, match=r"of \d elements .* masked.*\.filled\(value\)"):
            take(array)
    assert Tensor(array.filled(7)).tolist() == [[0, 1, 2], [3, 7, 7]]
    assert Tensor(array[0]).tolist() == [0, 1, 2], "nothing of it is masked"


def test_numpy_operators_give_tensors_and_functions_arrays() -> None:
    x, a = computed(), np.ones((2, 3), np.float32)
    for made, wanted in (
        (a + x, a + x.numpy()), (a - x, a - x.numpy()), (np.add(x, 1), x.numpy() + 1),
        (np.float32(2) * x, 2 * x.numpy()), (a @ x.T, a @ x.numpy().T), (a < x, a < x.numpy()),
        (a == x, a == x.numpy()), (np.negative(x), -x.numpy()),
    ):  # fmt: skip
        assert isinstance(made, Tensor)
        np.testing.assert_array_equal(made.numpy(), wanted)
    assert isinstance(np.exp(x), np.ndarray) and np.add.reduce(x, axis=0).tolist() == [3, 5, 7]
    assert isinstance(np.concatenate([a, x]), np.ndarray)
    a += x
    assert isinstance(a, np.ndarray) and a.tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(InvalidType, match="cannot write to a tensor"):
        np.add(a, 1, out=x)


def test_the_constructor_copies() -> None:
    a = np.zeros(3)
    x = Tensor(a)
    a += 1
    assert x.tolist() == [0, 0, 0]


# Buffers.


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_data(dtype: DType) -> None:
    x = Tensor([[0, 1], [1, 1]]).cast(dtype).realize()
    view = x.data()
    assert view.readonly and view.shape == (2, 2) and view.nbytes == x.nbytes()
    assert np.asarray(view).ctypes.data == address(x)
    assert bytes(view) == x.numpy().tobytes()
    assert bytes(x.T.data()) == x.numpy().T.tobytes()


def test_data_of_what_is_not_computed_empty_or_elsewhere(device: str) -> None:
    assert (Tensor([1.0, 2.0], device=device) + 1).data().tolist() == [2, 3]
    assert Tensor.zeros(0, 2, device=device).data().shape == (0, 2)
    assert Tensor(5, device=device).data().tolist() == 5


def test_buffer_protocol() -> None:
    x = computed()
    read, write = 0, 1
    assert x.__buffer__(read).tolist() == x.tolist()
    if sys.version_info >= (3, 12):
        assert memoryview(x).tolist() == x.tolist()
    with pytest.raises(BufferError, match="for reading"):
        x.__buffer__(write)
    with pytest.raises(BufferError, match="no format for bfloat16"):
        x.cast("bfloat16").__buffer__(read)


# DLPack.


def test_to_torch_and_numpy_without_a_copy() -> None:
    x = computed()
    t = torch.from_dlpack(x)
    assert t.data_ptr() == address(x) and t.tolist() == x.tolist()
    assert torch.from_dlpack(x.T).stride() == (1, 3)
    a = np.from_dlpack(x[:, ::2])
    assert a.ctypes.data == address(x) and not a.flags.writeable and a.tolist() == [[0, 2], [3, 5]]
    assert np.from_dlpack(x.flip(1)).tolist() == [[2, 1, 0], [5, 4, 3]]
    writable = np.from_dlpack(x, copy=True)
    writable += 1
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_to_torch_and_back(dtype: DType) -> None:
    names = {"fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2"}
    x = Tensor([[0, 1, 2]]).cast(dtype).realize()
    t = torch.from_dlpack(x)
    assert t.dtype is getattr(torch, names.get(dtype.name, dtype.name))
    back = Tensor.from_dlpack(t)
    assert back.dtype is dtype and back.tolist() == x.tolist() and address(back) == address(x)


def test_from_torch_and_numpy_without_a_copy() -> None:
    t = torch.arange(6.0).reshape(2, 3)
    launches = Counters.launches
    x = Tensor.from_dlpack(t)
    assert address(x) == t.data_ptr() and x.tolist() == t.tolist()
    assert Counters.launches == launches
    assert (x + 1).tolist() == (t + 1).tolist()
    assert Tensor.from_dlpack(t.T).tolist() == t.T.tolist()
    assert Tensor.from_dlpack(t[0].expand(2, 3)).tolist() == [[0, 1, 2]] * 2
    assert Tensor.from_dlpack(np.arange(4)[::-2]).tolist() == [3, 1]
    assert Tensor.from_dlpack(torch.zeros(0, 3)).shape == (0, 3)
    assert Tensor.from_dlpack(torch.tensor(5)).item() == 5
    assert Tensor.from_dlpack(torch.utils.dlpack.to_dlpack(t)).tolist() == t.tolist()
    copied = Tensor.from_dlpack(t, copy=True)
    on_other = Tensor.from_dlpack(t, device="PYTHON")
    t += 1
    assert copied.tolist() == on_other.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert on_other.device == "PYTHON"


def test_writing_to_a_borrowed_tensor_leaves_the_lender_alone() -> None:
    a = np.zeros(3)
    x = Tensor.from_dlpack(a)
    x[1] = 5
    assert x.realize().tolist() == [0, 5, 0] and a.tolist() == [0, 0, 0]


def test_borrowed_memory_lives_as_long_as_the_tensor() -> None:
    class Array(np.ndarray[Any, Any]):
        """A numpy array that can be referred to weakly."""

    a = np.arange(3.0).view(Array)
    gone = weakref.ref(a)
    x = Tensor.from_dlpack(a)
    y = Tensor.from_dlpack(a)
    del a, x
    gc.collect()
    assert gone() is not None and y.tolist() == [0, 1, 2]
    del y
    gc.collect()
    assert gone() is None


def test_lent_structs_are_given_back() -> None:
    before = len(dlpack._lent)
    x = computed()
    t, unused = torch.from_dlpack(x), x.__dlpack__(max_version=(1, 0))
    old = x.__dlpack__()
    assert len(dlpack._lent) == before + 3
    del x
    gc.collect()
    assert t.tolist() == [[0, 1, 2], [3, 4, 5]]
    del t, unused, old
    gc.collect()
    assert len(dlpack._lent) == before


def test_consumers_of_the_old_form_get_a_copy() -> None:
    x = computed()
    t = torch.utils.dlpack.from_dlpack(x.__dlpack__())
    t += 1
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BufferError, match=r"DLPack 1\.0 or later"):
        x.__dlpack__(copy=False)


def test_a_process_ends_well_while_memory_is_lent() -> None:
    code = (
        "import torch, numpy as np; from gpu import Tensor; x = Tensor([1.0, 2.0]).realize();"
        "t = torch.from_dlpack(x); a = np.from_dlpack(x); y = Tensor.from_dlpack(torch.ones(2));"
        "c = x.__dlpack__(max_version=(1, 0)); print((y + 1).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[2.0, 2.0]\n" and done.stderr == ""


class Corrupt:
    """Lends an array whose struct a test has changed."""

    def __init__(self, change: Callable[[Any], None]):
        self.change = change

    def __dlpack__(self, max_version: object = None) -> object:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        memory = dlpack.host_memory(array, dtypes.float32)
        capsule = dlpack.make_capsule(memory, True, 0)
        managed, _ = dlpack._opened(capsule)
        self.change(managed)
        return capsule


@pytest.mark.parametrize(
    ("field", "value", "error", "says"),
    [
        ("major", 2, Unsupported, "version 2.0"),
        ("tensor.device_type", 2, Unsupported, "device of type 2"),
        ("tensor.ndim", -1, FormatError, "-1 dimensions"),
        ("tensor.ndim", 1000, FormatError, "1000 dimensions"),
        ("tensor.dtype.code", 5, Unsupported, "type code 5 of 32 bits"),
        ("tensor.dtype.lanes", 4, Unsupported, "4 lanes"),
        ("tensor.data", None, FormatError, "without memory"),
    ],
)
def test_corrupt_capsules(field: str, value: Any, error: type[GpuError], says: str) -> None:
    def change(managed: Any) -> None:
        *path, name = field.split(".")
        for part in path:
            managed = getattr(managed, part)
        setattr(managed, name, value)

    before = len(dlpack._lent)
    with pytest.raises(error, match=says):
        Tensor.from_dlpack(Corrupt(change))
    gc.collect()
    assert len(dlpack._lent) == before


def test_negative_size_in_a_capsule() -> None:
    def change(managed: Any) -> None:
        managed.tensor.shape[0] = -2

    with pytest.raises(FormatError, match=r"\[-2, 3\]"):
        Tensor.from_dlpack(Corrupt(change))


# Foreign memory.


def test_from_blob() -> None:
    memory = (ctypes.c_float * 6)(*range(6))
    x = Tensor.from_blob(ctypes.addressof(memory), (2, 3))
    assert address(x) == ctypes.addressof(memory) and x.dtype is dtypes.float32
    assert (x * 2).tolist() == [[0, 2, 4], [6, 8, 10]]
    as_ints = Tensor.from_blob(ctypes.addressof(memory), 6, dtype="int32", device="cpu:1")
    assert as_ints.device == "CPU:1" and as_ints.bitcast("float32").tolist() == list(range(6))
    same = Tensor.from_blob(ctypes.addressof(memory), (3, 2)).reshape(2, 3)
    assert same._node.src[0].attr == x._node.attr
    assert Tensor.from_blob(ctypes.addressof(memory), (0, 2)).tolist() == []


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: Tensor.from_blob(0, 3), InvalidValue, "got 0x0"),
        (lambda x: Tensor.from_blob(6, 3), InvalidValue, "multiple of 4.*got 0x6"),
        (lambda x: Tensor.from_blob("a", 3), InvalidType, "ptr must be an int"),
        (lambda x: Tensor.from_blob(64, -3), ShapeError, "negative"),
        (lambda x: Tensor.from_blob(64, 3, device="PYTHON"), Unsupported, "PYTHON cannot use"),
        (lambda x: Tensor.from_dlpack([1, 2]), InvalidType, "got list"),
        (lambda x: Tensor.from_dlpack(torch.ones(2, dtype=torch.complex32)), Unsupported, "code 5"),
        (lambda x: Tensor.from_dlpack(torch.ones(2, 3).T, copy=False), InvalidValue, "copy=False"),
        (lambda x: Tensor.from_dlpack(torch.ones(2), "PYTHON", False), InvalidValue, "on PYTHON"),
        (lambda x: dlpack.take_capsule(3), InvalidType, "got int"),
        (lambda x: np.asarray(x, np.int8, copy=False), InvalidValue, "is float32"),
        (lambda x: np.asarray(x.to("PYTHON"), copy=False), InvalidValue, "is on PYTHON"),
        (lambda x: x.__dlpack__(stream=1), BufferError, "stream=1"),
        (lambda x: x.__dlpack__(dl_device=(2, 0)), BufferError, r"dl_device=\(2, 0\)"),
        (lambda x: x.flip(0).__dlpack__(copy=False, max_version=(1, 0)), BufferError, "flips"),
    ],
)
def test_bad_input(call: Callable[[Tensor], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        call(computed())
    assert isinstance(caught.value, GpuError)


def test_a_capsule_is_taken_once() -> None:
    capsule = computed().__dlpack__(max_version=(1, 0))
    Tensor.from_dlpack(capsule)
    with pytest.raises(InvalidType, match="taken already"):
        Tensor.from_dlpack(capsule)


class OnCuda:
    """What an array of cupy's shows."""

    __cuda_array_interface__: ClassVar = {"data": (0x7F00_0000, False), "shape": (2,)}


@pytest.mark.parametrize("take", [Tensor, lambda x: Tensor.from_blob(x, 2)])
def test_arrays_of_cuda_are_refused_with_the_way_that_works(take: Callable[[Any], Any]) -> None:
    says = "OnCuda.*outside of CUDA's own driver.*through the host"
    with pytest.raises(Unsupported, match=says):
        take(OnCuda())


def test_a_tensor_says_why_cuda_cannot_have_its_memory() -> None:
    x = computed()
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match=r"page tables of its own.*through the host"):
        _ = x.__cuda_array_interface__


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "int64"])
def test_floats_that_no_integer_holds(dtype: str) -> None:
    for value in (float("nan"), float("inf"), -float("inf"), 1e30, -1e30):
        for make in (Tensor, lambda x, dtype: Tensor([[0.5, x]], dtype=dtype)):
            with pytest.raises(NumberOverflow, match=f"does not fit {dtype}; clamp it"):
                make(value, dtype=dtype)
        with pytest.raises(NumberOverflow):
            Tensor.full((1,), value, dtype=dtype)
    assert Tensor([[2.9, -0.5]], dtype=dtype).tolist() == [[2, 0]]
    assert Tensor(2.9, dtype=dtype).item() == Tensor.full((), 2.9, dtype=dtype).item() == 2


class Missing:
    """Numbers of which some are missing, as arrow has them."""

    def __dlpack__(self, **options: object) -> object:
        raise TypeError("only arrays without nulls")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_values_that_are_no_numbers_are_refused_by_type() -> None:
    with pytest.raises(InvalidValue, match="without nulls"):
        Tensor(Missing())
    with pytest.raises(DTypeError, match="numbers and bools"):
        Tensor(np.array(["x"]))


@pytest.mark.parametrize("wanted", [dtypes.float32, dtypes.float16, dtypes.bfloat16], ids=str)
def test_numpys_float64_as_a_narrower_float(wanted: DType, device: str) -> None:
    x = np.random.default_rng(3).standard_normal((5, 3)) * 1e3
    found = Tensor(x[:, ::2], dtype=wanted, device=device)
    assert found.dtype is wanted
    np.testing.assert_array_equal(found.float().numpy(), x[:, ::2].astype(wanted.np).astype("f4"))
