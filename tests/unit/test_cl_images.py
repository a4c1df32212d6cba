"""Images on the OpenCL device: tensors in them, those of others, and operands with `IMAGE=1`."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu import Device, Tensor, jit
from gpu.autogen import opencl as cl
from gpu.backends.cl.context import CLContext
from gpu.backends.cl.device import CLDevice
from gpu.backends.cl.images import CLImage, image_argument
from gpu.backends.cl.memory import CLAllocator
from gpu.backends.cl.target import device_target
from gpu.core.config import Context
from gpu.core.dtype import DType, ImageDType, dtypes
from gpu.core.errors import InvalidValue, ShapeError, Unsupported
from gpu.runtime.compile import compile_graph
from unit.cl_kernels import cl_device


@pytest.fixture
def device(need: Callable[[str], None]) -> CLDevice:
    need("opencl")
    device = cl_device()
    if device.context.info.images is None:
        pytest.skip(f"{device.context.info.name} has no images")
    return device


def halves(device: CLDevice) -> None:
    if "Oclgrind" in device.context.info.name:
        pytest.skip("Oclgrind 21.10 converts the halves of images wrong")


def random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_tensor_lives_in_an_image(device: CLDevice) -> None:
    a = random((8, 16, 4))
    x = Tensor(a, device="CL").cast(dtypes.imagef((8, 16))).realize()
    assert x.dtype is dtypes.imagef((8, 16)) and x.shape == (8, 16, 4)
    assert x.numpy().dtype == np.float32 and x.tolist() == a.tolist()
    assert (x + 1).dtype is dtypes.float32
    np.testing.assert_allclose((x.exp() * 2).sum(1).numpy(), (np.exp(a) * 2).sum(1), rtol=1e-5)


def test_half_images_round_as_numpy_does(device: CLDevice) -> None:
    halves(device)
    a = random((4096,)) * 10.0 ** np.random.default_rng(1).integers(-9, 6, 4096)
    a[:4] = [65519.9, 65520, 2.0**-25, -0.0]
    a = a.astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = a.astype(np.float16)
    x = Tensor(a, device="CL").cast(dtypes.imageh((32, 32)))
    assert x.numpy().view(np.uint16).tolist() == wanted.view(np.uint16).tolist()
    assert x.float().tolist() == wanted.astype(np.float32).tolist()


@pytest.mark.parametrize("shape", [(4,), (6, 10, 2), (7, 12)])
def test_pixels_and_axes_need_not_agree(device: CLDevice, shape: tuple[int, ...]) -> None:
    a = random(shape)
    pixels = a.size // 4
    height = next(h for h in (3, 2, 1) if pixels % h == 0)
    x = Tensor(a, device="CL").cast(dtypes.imagef((height, pixels // height))).realize()
    assert x.shape == shape and x.tolist() == a.tolist()
    assert x.flip(0).tolist() == a[::-1].tolist()
    assert x.pad(((1, 1),) * len(shape)).tolist() == np.pad(a, 1).tolist()


def test_reductions_and_several_outputs_reach_images(device: CLDevice) -> None:
    a = random((24, 32))
    x = Tensor(a, device="CL")
    sums = (x.sum(1) + 1).cast(dtypes.imagef((2, 3)))
    scaled, shifted = (x * 2).cast(dtypes.imagef((24, 8))), (x + 1).cast(dtypes.imagef((24, 8)))
    Tensor.realize(sums, scaled, shifted)
    np.testing.assert_allclose(sums.numpy(), a.sum(1) + 1, rtol=1e-5)
    assert scaled.tolist() == (a * 2).tolist() and shifted.tolist() == (a + 1).tolist()


def test_an_image_is_written_to_and_made_of_numbers(device: CLDevice) -> None:
    x = Tensor.zeros(2, 4, 4, dtype=dtypes.imagef((2, 4)), device="CL")
    assert x.dtype is dtypes.imagef((2, 4)) and x.numpy().tolist() == np.zeros((2, 4, 4)).tolist()
    x[1] = 5
    assert x.dtype is dtypes.imagef((2, 4)) and x.sum().item() == 80


def test_images_replay(device: CLDevice) -> None:
    image = dtypes.imagef((4, 4))

    @jit
    def step(x: Tensor) -> Tensor:
        y = (x * 3).cast(image)
        return (y + 1).cast(image) * 0.5

    for seed in range(4):
        a = random((16, 4), seed)
        np.testing.assert_allclose(
            step(Tensor(a, device="CL")).numpy(), (a * 3 + 1) * 0.5, rtol=1e-6
        )


def test_images_that_are_let_go_of_are_used_again(device: CLDevice) -> None:
    allocator = CLAllocator(device.context)
    image = dtypes.imagef((2, 2))
    first = allocator.alloc_image(image)
    allocator.free_image(first, image)
    assert allocator.alloc_image(image) is first and allocator.live == 64
    allocator.free_image(first, image)
    gone = weakref.ref(first)
    del first
    allocator.free_cache()
    gc.collect()
    assert gone() is None and allocator.cached == 0


def test_an_image_of_garbage_may_be_used_again(device: CLDevice) -> None:
    allocator, shape, data = CLAllocator(device.context), dtypes.imagef((2, 2)), random((16,))

    class Holder:
        def __init__(self) -> None:
            self.itself, self.image = self, allocator.alloc_image(shape)

        def __del__(self) -> None:
            allocator.free_image(self.image, shape)

    Holder()
    gc.collect()
    again, result = allocator.alloc_image(shape), np.empty(16, np.float32)
    allocator.copy_in(again, data.view(np.uint8).data)
    allocator.copy_out(result.view(np.uint8).data, again)
    assert result.tolist() == data.tolist()


def test_images_and_buffers_are_copied_to_each_other(device: CLDevice) -> None:
    allocator, image = CLAllocator(device.context), dtypes.imagef((3, 5))
    data, result = random((60,)), np.empty(60, np.float32)
    buffer, one, other = allocator.alloc(240), *(allocator.alloc_image(image) for _ in "12")
    allocator.copy_in(buffer, data.view(np.uint8).data)
    allocator.copy(one, buffer, 240)
    allocator.copy(other, one, 240)
    allocator.copy_out(result.view(np.uint8).data, other)
    assert result.tolist() == data.tolist()
    allocator.copy_in(one, (data + 1).view(np.uint8).data)
    allocator.copy(buffer, one, 240)
    allocator.copy_out(result.view(np.uint8).data, buffer)
    assert result.tolist() == (data + 1).tolist()


@pytest.mark.parametrize("offset", [0, 4])
def test_a_buffer_is_read_as_an_image(device: CLDevice, offset: int) -> None:
    """In place where the device can, else through a copy, as memory at odd addresses always is."""
    context, image = device.context, dtypes.imagef((2, 64))
    data = random((1024,))[offset : offset + 512]
    allocator = CLAllocator(context)
    borrowed = allocator.borrow(data.ctypes.data, data.nbytes, data) if offset else None
    memory = borrowed or allocator.alloc(data.nbytes)
    if not borrowed:
        allocator.copy_in(memory, data.view(np.uint8).data)
    view = image_argument(context, memory, image)
    result = np.empty(512, np.float32)
    allocator.copy_out(result.view(np.uint8).data, view)
    assert result.tolist() == data.tolist()
    assert image_argument(context, memory, image) is view and isinstance(view, CLImage)
    assert context.info.images is not None
    assert view.in_place == bool(context.info.images.pitch and not offset)
    if not borrowed:
        gone = weakref.ref(view)
        del view
        allocator.free(memory, data.nbytes)
        gc.collect()
        assert gone() is None


# Images of others.


class Format(ctypes.Structure):
    _fields_ = (("order", ctypes.c_uint), ("type", ctypes.c_uint))


class Description(ctypes.Structure):
    _fields_ = (
        *(("type", ctypes.c_uint), *((name, ctypes.c_size_t) for name in "whdarp")),
        *(("mips", ctypes.c_uint), ("samples", ctypes.c_uint), ("buffer", ctypes.c_void_p)),
    )


def make_image(context: CLContext, array: np.ndarray[Any, Any]) -> int:
    """An image as another program would make it, of (height, width, 4) halves or floats."""
    kind = cl.CL_HALF_FLOAT if array.dtype == np.float16 else cl.CL_FLOAT
    height, width, _ = array.shape
    handle = context.api.make(
        *("clCreateImage", context.context, cl.CL_MEM_READ_WRITE),
        ctypes.byref(Format(cl.CL_RGBA, kind)),
        ctypes.byref(Description(cl.CL_MEM_OBJECT_IMAGE2D, width, height)),
        *(None,),
        what="test",
    )
    sizes = ctypes.c_size_t * 3
    code = context.api.clEnqueueWriteImage(
        *(context.queue, handle, 1, sizes(), sizes(width, height, 1), 0, 0, array.ctypes.data),
        *(0, None, None),
    )
    assert code == 0
    return handle


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_an_image_of_others_is_a_tensor(device: CLDevice, dtype: Any) -> None:
    if dtype is np.float16:
        halves(device)
    context = device.context
    array = random((5, 7, 4)).astype(dtype)
    handle = make_image(context, array)
    image = (dtypes.imageh if dtype is np.float16 else dtypes.imagef)((5, 7))
    x = Tensor.from_blob(handle, (5, 7, 4), image, device="CL")
    assert context.api.clReleaseMemObject(handle) == 0  # the tensor holds it
    assert x.dtype is image and x.tolist() == array.tolist()
    flat = x.reshape(35, 4)
    wide = array.astype(np.float32).reshape(35, 4)
    np.testing.assert_allclose((flat @ flat.T).numpy(), wide @ wide.T, rtol=1e-5, atol=1e-5)


def references(device: CLDevice, handle: int) -> int:
    return device.context.api.number("clGetMemObjectInfo", handle, key=0x1105)  # REFERENCE_COUNT


def test_an_image_of_others_is_held_as_long_as_it_is_needed(device: CLDevice) -> None:
    handle = make_image(device.context, random((2, 2, 4)))
    before = references(device, handle)
    x = Tensor.from_blob(handle, 16, dtypes.imagef((2, 2)), device="CL")
    y = x + 1
    assert references(device, handle) == before + 1
    del x
    gc.collect()
    assert references(device, handle) == before + 1  # y is not computed yet
    y.realize()
    gc.collect()
    assert references(device, handle) == before
    assert device.context.api.clReleaseMemObject(handle) == 0


@pytest.mark.parametrize(
    ("dtype", "shape", "error", "message"),
    [
        (dtypes.imageh((4, 3)), 48, InvalidValue, "has the format .* and imageh.* CL_HALF_FLOAT"),
        (dtypes.imagef((3, 4)), 48, InvalidValue, r"has 4 x 3 pixels \(height x width\)"),
        (dtypes.imagef((4, 3)), 47, ShapeError, "an image has 48 elements"),
        (dtypes.float32, 48, InvalidValue, "is no buffer; give an image .* the dtype"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(
    device: CLDevice, dtype: DType, shape: int, error: type[Exception], message: str
) -> None:
    handle = make_image(device.context, random((4, 3, 4)))
    with pytest.raises(error, match=message):
        Tensor.from_blob(handle, shape, dtype, device="CL")
    gc.collect()
    assert device.context.api.clReleaseMemObject(handle) == 0


def test_a_buffer_is_no_image(device: CLDevice) -> None:
    memory = device.allocator.alloc(256)
    with pytest.raises(InvalidValue, match="is no image of two dimensions"):
        Tensor.from_blob(memory.handle, 64, dtypes.imagef((4, 4)), device="CL")
    device.allocator.free(memory, 256)


def test_limits_are_the_devices_own(device: CLDevice) -> None:
    assert device.context.info.images is not None
    width = device.context.info.images.width + 1
    x = Tensor.zeros(4 * width, device="CL")
    with pytest.raises(Unsupported, match=rf"images of at most \d+ x {width - 1} pixels"):
        x.cast(dtypes.imagef((1, width))).realize()
    info = device.context.info._replace(images=None)
    assert device_target(info).images is None
    context = CLContext(device.context.api, info)
    with pytest.raises(Unsupported, match="CL_DEVICE_IMAGE_SUPPORT"):
        CLAllocator(context).alloc_image(dtypes.imagef((1, 1)))


# IMAGE=1.


@pytest.fixture
def images_used(monkeypatch: pytest.MonkeyPatch) -> list[ImageDType]:
    """The images that kernels compiled from now on take."""
    from gpu.compiler.render.cstyle.opencl_images import images_of

    used: list[ImageDType] = []

    def compiled(*args: Any) -> Any:
        recipe = compile_graph(*args)
        for code in recipe.codes:
            used.extend(images_of(code.data).values())
        return recipe

    monkeypatch.setattr("gpu.runtime.compile.compile_graph", compiled)
    return used


def test_products_and_convolutions_read_images(
    device: CLDevice, images_used: list[ImageDType]
) -> None:
    rng = np.random.default_rng(0)
    a, b = random((12, 20), 1), random((20, 16), 2)
    x, w, v = random((2, 4, 9, 7), 3), random((8, 4, 3, 3), 4), random((4, 8, 1, 1), 5)
    stride = int(rng.integers(1, 3))
    outputs = []
    for setting in (0, 1):
        with Context(IMAGE=setting):
            p, q, t = (Tensor(each, device="CL") for each in (a, b, x))
            product = ((p * 2) @ q).relu() @ Tensor(b.T.copy(), device="CL")
            conv = t.conv2d(Tensor(w, device="CL"), padding=1, stride=stride).relu()
            conv = conv.conv2d(Tensor(v, device="CL"))
            outputs.append((product.numpy(), conv.numpy()))
        assert bool(images_used) == bool(setting)
    for plain, through in zip(*outputs, strict=True):
        np.testing.assert_allclose(through, plain, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs[1][0], np.maximum(2 * a @ b, 0) @ b.T, rtol=1e-4, atol=1e-4)
    assert dtypes.imagef((12, 5)) in images_used  # a, in rows of five pixels


def test_halves_are_read_from_half_images(device: CLDevice, images_used: list[ImageDType]) -> None:
    halves(device)
    a, b = (random((16, 16), seed).astype(np.float16) for seed in (1, 2))
    with Context(IMAGE=1):
        got = (Tensor(a, device="CL") @ Tensor(b, device="CL")).numpy()
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-3)
    assert [image.stored for image in images_used] == [dtypes.float16] * 2


def test_operands_written_in_place_are_read_before(device: CLDevice) -> None:
    a, b = random((8, 8), 1), random((8, 8), 2)
    with Context(IMAGE=1):
        x = Tensor(a, device="CL").realize()
        product = x @ Tensor(b, device="CL")
        x[0] = 0
        Tensor.realize(product, x)
    np.testing.assert_allclose(product.numpy(), a @ b, rtol=1e-5, atol=1e-5)
    assert x.numpy()[0].tolist() == [0] * 8 and x.numpy()[1].tolist() == a[1].tolist()


def test_training_is_the_same_with_images(device: CLDevice) -> None:
    data = random((16, 12)), random((12, 8), 1)
    results = []
    for setting in (0, 1):
        with Context(IMAGE=setting):
            x = Tensor(data[0], device="CL")
            w = Tensor(data[1], device="CL", requires_grad=True)
            ((x @ w).relu() ** 2).sum().backward()
            assert w.grad is not None
            results.append(w.grad.numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4)


def test_a_target_with_images_has_a_key_of_its_own(device: CLDevice) -> None:
    target = Device["CL"].renderer.target
    assert target.images and replace(target, images=None).key != target.key


def test_a_jitted_function_takes_images(device: CLDevice) -> None:
    image = dtypes.imagef((4, 8))

    @jit
    def step(x: Tensor, w: Tensor) -> Tensor:
        return ((x + 1) @ w.reshape(16, 8)).relu()

    with Context(IMAGE=1):
        for seed in range(4):
            a, b = random((8, 16), seed), random((16, 8), seed + 10)
            w = Tensor(b, device="CL").cast(image).realize()
            got = step(Tensor(a, device="CL"), w).numpy()
            np.testing.assert_allclose(got, np.maximum((a + 1) @ b, 0), rtol=1e-4, atol=1e-4)
    w.assign(w * 2)
    assert w.dtype is image and w.tolist() == (2 * b).tolist()
