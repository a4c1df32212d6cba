"""Images: memory that kernels read through samplers, and buffers that they read so.

Structs are those of section 5.3.1 of the OpenCL 3.0 API specification.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_uint32, c_void_p
from typing import Any, Final

from gpu.autogen import opencl as cl
from gpu.backends.cl.context import CLContext
from gpu.backends.cl.objects import BorrowedMemory, CLMemory
from gpu.core.dtype import ImageDType, dtypes
from gpu.core.errors import DeviceError, InvalidValue, OutOfMemory, Unsupported

_CHANNELS: Final = 4
_TYPES: Final = {dtypes.float16: cl.CL_HALF_FLOAT, dtypes.float32: cl.CL_FLOAT}


class _Format(ctypes.Structure):
    _fields_ = (("order", c_uint32), ("type", c_uint32))


class _Description(ctypes.Structure):
    _fields_ = (
        *(("type", c_uint32), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)),
        *(("array_size", c_size_t), ("row_pitch", c_size_t), ("slice_pitch", c_size_t)),
        *(("mip_levels", c_uint32), ("samples", c_uint32), ("buffer", c_void_p)),
    )


class CLImage(CLMemory):
    """An image of our own, released when nothing refers to it any more.

    Attributes:
        in_place: whether it lies in the memory of a buffer.
    """

    __slots__ = ("_context", "in_place")

    def __init__(self, context: CLContext, image: ImageDType, buffer: int = 0):
        """`buffer` is a `cl_mem` whose memory it lies in (cl_khr_image2d_from_buffer).

        Raises OutOfMemory where there is no memory, DeviceError for a buffer that does not do.
        """
        self._context = context
        super().__init__(_make_image(context, image, buffer), image=image)
        self.in_place = bool(buffer)

    def __del__(self) -> None:
        # What was enqueued keeps it until that has run (clReleaseMemObject).
        if hasattr(self, "in_place") and not self._context.is_lost:
            self._context.api.clReleaseMemObject(self.handle)


def _make_image(context: CLContext, image: ImageDType, buffer: int) -> int:
    info = context.info
    check_image(context, image)
    shape = _Description(cl.CL_MEM_OBJECT_IMAGE2D, image.width, image.height)
    if buffer:
        shape.buffer, shape.row_pitch = buffer, _CHANNELS * image.width * image.itemsize
    return context.api.make(
        *("clCreateImage", context.context, cl.CL_MEM_READ_WRITE),
        *(byref(_Format(cl.CL_RGBA, _TYPES[image.stored])), byref(shape), None),
        what=f"allocate {image.name} on {info.name}",
    )


def check_image(context: CLContext, image: ImageDType) -> None:
    """Raises Unsupported for an image that the device cannot have, OutOfMemory for one too big."""
    info = context.info
    if info.images is None:
        raise Unsupported(
            f"{info.name} has no images (CL_DEVICE_IMAGE_SUPPORT), and {image.name} is one; use"
            " float32 or float16"
        )
    if not info.images.fits(image):
        raise Unsupported(
            f"{info.name} has images of at most {info.images.height} x {info.images.width} pixels"
            f" (CL_DEVICE_IMAGE2D_MAX_HEIGHT, WIDTH), and {image.name} is larger"
        )
    nbytes = image.size * image.itemsize
    if nbytes > info.most_memory:
        raise OutOfMemory(
            f"cannot allocate the {nbytes:,} bytes of {image.name}: {info.name} has at most"
            f" {info.most_memory:,} in one piece (CL_DEVICE_MAX_MEM_ALLOC_SIZE)"
        )


def image_argument(context: CLContext, memory: CLMemory, image: ImageDType) -> CLMemory:
    """`memory` as a kernel takes it that reads an image.

    A buffer is read in place where the device can; else it is copied, on the queue, to an image
    that is kept with it. Raises OutOfMemory.
    """
    if memory.image is not None:
        return memory
    view = memory.views.get(image)
    if view is None:
        view = memory.views[image] = _view(context, memory, image)
    if not view.in_place:
        copy_image(context, view, memory)
    return view


def _view(context: CLContext, memory: CLMemory, image: ImageDType) -> CLImage:
    """An image in the memory of a buffer; where that is not aligned so, one of its own."""
    images = context.info.images
    if images and images.pitch and image.width % images.pitch == 0:
        try:
            return CLImage(context, image, memory.handle)
        except DeviceError:  # the only way to learn how the memory of others is aligned
            return CLImage(context, image)
    return CLImage(context, image)


def adopt_image(context: CLContext, pointer: int, image: ImageDType) -> BorrowedMemory:
    """The image whose `cl_mem` is `pointer`, of this device's context, retained.

    Raises InvalidValue for another object, format or size.
    """
    api = context.api
    kind = api.number("clGetMemObjectInfo", pointer, key=cl.CL_MEM_TYPE)
    if kind != cl.CL_MEM_OBJECT_IMAGE2D:
        raise InvalidValue(f"the cl_mem {pointer:#x} is no image of two dimensions; drop the dtype")
    found = _Format.from_buffer_copy(api.info("clGetImageInfo", pointer, key=cl.CL_IMAGE_FORMAT))
    sizes = [
        api.number("clGetImageInfo", pointer, key=key)
        for key in (cl.CL_IMAGE_HEIGHT, cl.CL_IMAGE_WIDTH)
    ]
    wanted = (cl.CL_RGBA, _TYPES[image.stored])
    if (found.order, found.type) != wanted:
        raise InvalidValue(
            f"the image {pointer:#x} has the format {found.order:#x}, {found.type:#x}, and"
            f" {image.name} is CL_RGBA ({wanted[0]:#x}) of"
            f" {'CL_HALF_FLOAT' if image.bits == 16 else 'CL_FLOAT'} ({wanted[1]:#x})"
        )
    if sizes != [image.height, image.width]:
        raise InvalidValue(
            f"the image {pointer:#x} has {sizes[0]} x {sizes[1]} pixels (height x width), and"
            f" {image.name} has {image.height} x {image.width}"
        )
    api.check(api.clRetainMemObject(pointer), f"retain the image {pointer:#x}")
    return BorrowedMemory(context, pointer, image=image)


_Place = c_size_t * 3
_ORIGIN: Final = _Place()


def _region(image: ImageDType) -> ctypes.Array[c_size_t]:
    return _Place(image.width, image.height, 1)


def write_image(context: CLContext, target: CLMemory, address: int) -> None:
    """Copies the pixels at a host address to an image, after everything that uses it."""
    assert target.image is not None
    context.run(
        *("clEnqueueWriteImage", context.queue, target.handle, cl.CL_TRUE),
        *(_ORIGIN, _region(target.image), 0, 0, address),
        writes=[target],
        what=f"copy to {target.image.name} on {context.info.name}",
    )


def read_image(context: CLContext, address: int, source: CLMemory) -> None:
    """Copies an image to a host address, after everything that writes it."""
    assert source.image is not None
    context.run(
        *("clEnqueueReadImage", context.queue, source.handle, cl.CL_TRUE),
        *(_ORIGIN, _region(source.image), 0, 0, address),
        reads=[source],
        what=f"copy from {source.image.name} on {context.info.name}",
    )


def copy_image(context: CLContext, target: CLMemory, source: CLMemory) -> None:
    """Copies all pixels between images, or one and a buffer; on the queue, returns at once."""
    image = target.image or source.image
    assert image is not None
    region = _region(image)
    places: tuple[Any, ...]
    if target.image and source.image:
        name, places = "clEnqueueCopyImage", (_ORIGIN, _ORIGIN, region)
    elif target.image:
        name, places = "clEnqueueCopyBufferToImage", (0, _ORIGIN, region)
    else:
        name, places = "clEnqueueCopyImageToBuffer", (_ORIGIN, region, 0)
    context.run(
        *(name, context.queue, source.handle, target.handle, *places),
        reads=[source],
        writes=[target],
        what=f"copy {image.name} on {context.info.name}",
    )
