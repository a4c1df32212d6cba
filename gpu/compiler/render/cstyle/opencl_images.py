"""Loads and stores of the linear IR in images, as OpenCL C statements.

An element's place is its pixel and the component of it: pixel p of an image as wide as w lies at
(p % w, p / w), and has the elements 4 * p and those that follow. Lanes that start a pixel read it
once; whatever else is read picks its component from a pixel of its own. Coordinates outside of an
image, which only elements that a mask excludes can have, read zeros (6.12.14 of the OpenCL C
specification 1.2, CLK_ADDRESS_CLAMP).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.cstyle.text import OPENCL, Emitter, Value
from gpu.core.dtype import ImageDType, dtypes

CHANNELS: Final = 4
SAMPLER: Final = (
    "const sampler_t pixels = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;"
)
"""How images are read: by whole coordinates, unfiltered."""
_FLOAT4: Final = OPENCL.type("f32", CHANNELS)


class ImageAccess:
    """Accesses to one image parameter."""

    def __init__(self, emitter: Emitter, name: str, image: ImageDType):
        self.emitter, self.name, self.image = emitter, name, image

    def load(self, lanes: int, index: Value, residue: int | None, mask: Value | None) -> Value:
        """The elements at `index` and after it, or at each of its lanes; 0 where `mask` excludes.

        `residue` is what a scalar index leaves when divided by the elements of a pixel.
        """
        if index.type.lanes > 1 or residue is None:
            elements = self._anywhere(lanes, index)
        else:
            elements = self._aligned(lanes, index, residue)
        if mask is not None:
            pairs = zip(mask.lanes(), elements, strict=True)
            elements = [f"({included} ? {element} : 0.0f)" for included, element in pairs]
        return self.emitter.vector(OPENCL.type("f32", lanes), elements)

    def store(self, index: Value, value: Value) -> None:
        """Writes the pixel that the element at a scalar index starts."""
        self.emitter.line(f"write_imagef({self.name}, {self._place(index.text)}, {value});")

    def _aligned(self, lanes: int, index: Value, residue: int) -> list[str]:
        """Elements that follow each other, of which each pixel is read once."""
        last = (residue + lanes - 1) // CHANNELS
        read = [self._pixel(f"{index} + {CHANNELS * i}") for i in range(last + 1)]
        places = (divmod(residue + lane, CHANNELS) for lane in range(lanes))
        return [f"{read[pixel]}.s{component}" for pixel, component in places]

    def _anywhere(self, lanes: int, index: Value) -> list[str]:
        """Elements whose components show when the kernel runs."""
        found = []
        for lane in range(lanes):
            place = index.lane(lane) if index.type.lanes > 1 else f"({index} + {lane})"
            pixel = self._pixel(place)
            found.append(self._component(pixel, place))
        return found

    def _component(self, pixel: Value, element: str) -> str:
        """The component that an element is of its pixel: selected, as memory would be slower."""
        place = self.emitter.value(OPENCL.type("i32"), f"(int)({element}) & {CHANNELS - 1}")
        low, high = (f"({place} & 1 ? {pixel}.{b} : {pixel}.{a})" for a, b in ("xy", "zw"))
        return f"({place} & 2 ? {high} : {low})"

    def _pixel(self, element: str) -> Value:
        return self.emitter.value(
            _FLOAT4, f"read_imagef({self.name}, pixels, {self._place(element)})"
        )

    def _place(self, element: str) -> str:
        """The coordinates of the pixel that holds an element."""
        pixel = self.emitter.value(OPENCL.type("i32"), f"(int)(({element}) >> 2)")
        width = self.image.width
        if self.image.height == 1:
            return f"(int2)({pixel}, 0)"
        return f"(int2)({pixel} % {width}, {pixel} / {width})"


def image_data(program: Program) -> dict[str, int]:
    """Which parameters are images, and of what size, as launch data; see `images_of`."""
    return {
        f"image{position}.{name}": value
        for position, param in enumerate(program.params)
        if (image := param.image)
        for name, value in (
            ("height", image.height), ("width", image.width), ("half", int(image.bits == 16)),
        )
    }  # fmt: skip


def images_of(data: Mapping[str, int]) -> dict[int, ImageDType]:
    """The images among the parameters, by position, as launch data tells them."""
    found = {}
    for key, height in data.items():
        name, _, field = key.partition(".")
        if field == "height":
            make = dtypes.imageh if data[f"{name}.half"] else dtypes.imagef
            found[int(name.removeprefix("image"))] = make((height, data[f"{name}.width"]))
    return found
