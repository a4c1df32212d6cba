"""Memory of DEV=METAL shared with another library of the process, on the simulated Mac."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device, Tensor, jit
from gpu.backends.metal.exchange import MetalExchange
from gpu.backends.metal.memory import PAGE
from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.tensor.dlpack import NotExportable
from libcuda.foreign import Taken
from sim.metal.raw_metal import PRIVATE, RawMetal
from unit.metal.foreign import METAL, Foreign, sharing

READ_ONLY, IS_COPIED = 1, 2
KINDS = ("float32", "int32", "float16", "uint8")


@pytest.fixture
def raw(need: Callable[[str], None]) -> Iterator[RawMetal]:
    need("simulated-mac")
    with sharing() as found:
        yield found


def drawn(rng: np.random.Generator, dtype: str = "float32", *shape: int) -> np.ndarray:
    return rng.integers(0, 50, shape or tuple(rng.integers(1, 9, rng.integers(1, 4)))).astype(dtype)


# Theirs, used here.


@pytest.mark.parametrize("seed", range(8))
def test_their_memory_is_used_in_place(raw: RawMetal, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = drawn(rng, KINDS[seed % len(KINDS)])
    theirs = Foreign(raw, values, int(rng.integers(0, 5)) * 16)
    x = Tensor.from_dlpack(theirs, copy=False)
    assert theirs.asked == [{"max_version": (1, 0)}]
    assert x.device == "METAL" and x.shape == values.shape
    np.testing.assert_array_equal((x * 2).numpy(), values * 2)
    theirs.now()[:] = (values + 1).reshape(-1)  # in place, so that this is seen
    np.testing.assert_array_equal((x * 2).numpy(), (values + 1) * 2)
    by_pointer = Tensor.from_blob(
        theirs.buffer, values.shape, values.dtype.name, offset=theirs.offset
    )
    by_address = Tensor.from_blob(theirs.contents, values.shape, values.dtype.name)
    for each in (by_pointer, by_address):
        np.testing.assert_array_equal((each + 0).numpy(), values + 1)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((3, 4), (1, 3), 0), ((2, 3), (6, 2), 16), ((3, 2), (0, 1), 4), ((5,), (1,), 4)],
)
def test_strides_and_odd_offsets_are_copied(
    raw: RawMetal, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    values = np.arange(24, dtype=np.int32)
    theirs = Foreign(raw, values)
    theirs.shape, theirs.strides, theirs.offset = shape, strides, offset  # type: ignore[assignment]
    steps = tuple(4 * step for step in strides)
    want = np.lib.stride_tricks.as_strided(values[offset // 4 :], shape, steps)
    with pytest.raises(InvalidValue, match=r"without a copy.*strides"):
        Tensor.from_dlpack(theirs, copy=False)
    np.testing.assert_array_equal(Tensor.from_dlpack(theirs).numpy(), want)


def test_their_memory_is_given_back_when_nothing_uses_it(raw: RawMetal) -> None:
    theirs = Foreign(raw, np.arange(64, dtype=np.float32))
    x = Tensor.from_dlpack(theirs)
    y = (x + 1).realize()
    assert not theirs.given_back
    del x
    gc.collect()
    assert theirs.given_back == 1
    theirs.now()[:] = 0  # they use it for something else at once
    assert y.tolist() == list(range(1, 65))
    count = raw.send(theirs.buffer, "retainCount")
    assert Tensor.from_blob(theirs.buffer, 64).sum().item() == 0
    gc.collect()
    assert raw.send(theirs.buffer, "retainCount") == count


def test_writing_to_their_memory_makes_a_copy(raw: RawMetal) -> None:
    theirs = Foreign(raw, np.arange(6, dtype=np.float32), 32)
    x = Tensor.from_dlpack(theirs)
    x += 1
    x[2] = 100
    assert x.tolist() == [1, 2, 100, 4, 5, 6]
    assert theirs.now().tolist() == list(range(6))


def test_replays_take_other_buffers_at_other_offsets(raw: RawMetal) -> None:
    @jit
    def step(x: Tensor) -> Tensor:
        total = x.sum().realize()
        return (x * 3 + total).realize()

    rng = np.random.default_rng(5)
    for _ in range(5):
        values = drawn(rng, "float32", 30)
        theirs = Foreign(raw, values, int(rng.integers(0, 4)) * 16)
        got = step(Tensor.from_dlpack(theirs))
        np.testing.assert_array_equal(got.numpy(), values * 3 + values.sum())


def test_a_capsule_is_taken_once(raw: RawMetal) -> None:
    capsule = Foreign(raw, np.arange(4, dtype=np.int32)).capsule(versioned=False)
    assert Tensor.from_dlpack(capsule).tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidType, match="taken already"):
        Tensor.from_dlpack(capsule)


def test_the_example_of_the_documents(raw: RawMetal, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands there, with what stands for torch's objects."""
    page = Path(__file__).parents[3] / "docs" / "devices" / "metal.md"
    _, _, rest = page.read_text().partition("```python\nimport torch\n")
    waited: list[bool] = []
    stand_in: Any = SimpleNamespace(
        arange=lambda count, dtype, device: Foreign(raw, np.arange(count, dtype="float32")),
        float32=None,
        mps=SimpleNamespace(synchronize=lambda: waited.append(True)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", stand_in)
        exec("import torch\n" + rest.partition("```")[0], {})
    assert capsys.readouterr().out == "[0.0, 2.0, 4.0, 6.0]\n"
    assert waited


# What is no memory of theirs.


def test_pointers_of_other_things_are_refused_with_what_to_do(raw: RawMetal) -> None:
    theirs = Foreign(raw, np.arange(64, dtype=np.float32))
    view = Foreign(raw, np.arange(8, dtype=np.float32), offset=64)
    before = raw.send(theirs.buffer, "retainCount")
    for refused, told in {
        lambda: Tensor.from_blob(view.data_ptr(), 8): r"added to a buffer's object.*offset=",
        lambda: Tensor.from_blob(theirs.buffer, 65): r"has 256 bytes, and 260 from 0 on",
        lambda: Tensor.from_blob(theirs.buffer, 60, offset=32): r"has 256 .* 240 from 32 on",
        lambda: Tensor.from_blob(theirs.buffer, 60, offset=8): r"multiple of 16",
        lambda: Tensor.from_blob(theirs.buffer, 60, offset=-16): r"ptr must be an address",
        lambda: Tensor.from_blob(raw.device, 1): r"is no MTLBuffer: give from_blob",
        lambda: Tensor.from_blob(theirs.buffer, 1, device="METAL:2"): r"is of another GPU",
        lambda: Tensor.from_blob(16, 4): r"no memory that Metal can use.*offset=",
        lambda: Tensor.from_blob(1 << 47, 4): r"no memory that Metal can use",
        lambda: Tensor.from_blob(theirs.contents, 1 << 38): r"no memory that Metal can use",
    }.items():
        with pytest.raises(InvalidValue, match=told):
            refused()
    assert raw.send(theirs.buffer, "retainCount") == before
    theirs.free()
    with pytest.raises(InvalidValue, match=r"are not memory for data|no memory that Metal"):
        Tensor.from_blob(theirs.buffer, 8)
    private = Foreign(raw, np.zeros(8, np.float32), options=PRIVATE)
    with pytest.raises(Unsupported, match=r"not in memory that the host shares.*2\.12"):
        Tensor.from_dlpack(private)


def test_addresses_are_refused_where_memory_may_be_the_gpus_own(
    need: Callable[[str], None],
) -> None:
    need("simulated-mac")
    pages = np.zeros(2 * PAGE, np.uint8)
    with sharing("METAL:3"), pytest.raises(Unsupported, match=r"cannot use .* in place"):
        Tensor.from_blob(-(-pages.ctypes.data // PAGE) * PAGE, 4)


def test_memory_of_metal_is_for_metal(raw: RawMetal) -> None:
    theirs = Foreign(raw, np.arange(6, dtype=np.float32))
    with Context(DEV="CPU"), pytest.raises(Unsupported, match=r"8 \(Metal\).*device='METAL'"):
        Tensor.from_dlpack(theirs)
    assert Tensor.from_dlpack(theirs, "METAL").tolist() == list(range(6))
    with pytest.raises(Unsupported, match=r"2 \(CUDA\)"):
        theirs.device = (2, 0)
        Tensor.from_dlpack(theirs)


def test_pages_of_the_host_by_their_address(raw: RawMetal) -> None:
    """In the middle of them, where malloc_size knows no block."""
    whole = np.zeros(3 * PAGE, np.uint8)
    begin = -whole.ctypes.data % PAGE + 160
    data = whole[begin : begin + 400].view(np.float32)
    data[:] = np.arange(100)
    x = Tensor.from_blob(data.ctypes.data, 100)
    assert x.sum().item() == data.sum()
    np.testing.assert_array_equal(x.numpy(), data)


# Ours, used there.


@pytest.mark.parametrize("seed", range(3))
def test_ours_is_lent_in_place_when_it_is_computed(raw: RawMetal, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = drawn(rng, "float32")
    x = Tensor(values) + 1
    assert x.__dlpack_device__() == (METAL, 0)
    taken = Taken(x.__dlpack__(max_version=(1, 0)))
    tensor = taken.tensor
    assert (tensor.device_type, tensor.device_id, tensor.byte_offset) == (METAL, 0, 0)
    assert (taken.flags, taken.shape) == (READ_ONLY, values.shape)
    in_it = raw.floats(tensor.data)[: values.size]  # nobody waits here
    np.testing.assert_array_equal(in_it, (values + 1).reshape(-1))
    assert np.from_dlpack(x, device="cpu").ctypes.data == in_it.ctypes.data
    address = tensor.data
    del x
    gc.collect()
    assert raw.text(raw.send(raw.device, "name"))  # and the buffer is there still
    np.testing.assert_array_equal(raw.floats(address)[: values.size], (values + 1).reshape(-1))
    del in_it
    taken.drop()


def test_what_was_lent_is_not_handed_out_again(raw: RawMetal) -> None:
    """Work that they have enqueued may read it after they gave it back."""
    x = (Tensor.arange(1000, dtype="float32") + 1).realize()
    taken = Taken(x.__dlpack__(max_version=(1, 0)))
    theirs = raw.send(taken.tensor.data, "retain")  # as their command buffer does
    taken.drop()
    del x
    gc.collect()
    memories = [Device["METAL"].allocator.alloc(4000) for _ in range(4)]
    assert theirs not in [each.id for each in memories]
    assert raw.floats(theirs)[:1000].tolist() == list(range(1, 1001))
    raw.release(theirs)


def test_a_view_of_theirs_is_lent_with_its_offset(raw: RawMetal) -> None:
    theirs = Foreign(raw, np.arange(8, dtype=np.float32), offset=48)
    taken = Taken(Tensor.from_dlpack(theirs).__dlpack__(max_version=(1, 0)))
    assert (taken.tensor.data, taken.tensor.byte_offset) == (theirs.buffer, 48)
    taken.drop()


def test_consumers_that_cannot_be_told_get_a_copy(raw: RawMetal) -> None:
    x = Tensor.arange(6, dtype="float32").realize()
    taken = Taken(x.__dlpack__())
    raw.floats(taken.tensor.data)[:6] = 7
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    taken.drop()
    for options, told in (
        ({"stream": 1}, r"stream=1: METAL has no streams"),
        ({"dl_device": (METAL, 1)}, r"\(8, 1\)"),
        ({"copy": False}, "1.0 or later"),
    ):
        with pytest.raises(NotExportable, match=told):
            x.__dlpack__(**options)
    with pytest.raises(AttributeError, match="those on CUDA alone"):
        _ = x.__cuda_array_interface__


def test_a_block_of_malloc_that_is_no_object_is_memory(raw: RawMetal) -> None:
    """As numpy's: what it begins with is no class. The model's malloc has objects alone."""
    whole = np.zeros(3 * PAGE, np.uint8)
    begin = whole.ctypes.data - whole.ctypes.data % -PAGE
    objc = Device["METAL"].context.objc  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objc, "malloc_size", lambda place: 2 * PAGE if place == begin else 0)
        patch.setattr(
            objc, "object_getClass", lambda place: ctypes.c_uint64.from_address(place).value
        )
        assert Tensor.from_blob(begin, PAGE // 4).sum().item() == 0
        assert Tensor.from_blob(begin + 64, 8, "int32").sum().item() == 0
        with pytest.raises(InvalidValue, match="a block of 32,768 bytes"):
            Tensor.from_blob(begin + PAGE - 16, PAGE // 4 + 16)


def test_the_exchange_names_its_gpu(need: Callable[[str], None]) -> None:
    need("clang")  # which compiles the addition
    with sharing("METAL:2"):
        exchange = Device["METAL:2"].allocator.exchange
        assert isinstance(exchange, MetalExchange) and exchange.device == (METAL, 2)
        x = Tensor([1.0, 2.0], device="METAL:2") + 1
        assert Tensor.from_dlpack(x.__dlpack__(max_version=(1, 0))).device == "METAL:2"
