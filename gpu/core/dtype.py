"""Element types and how they combine.

Promotion (`promote`) follows the Array API standard where it speaks, and this table where it does
not:

====================================  ==========================================================
operands                              result
====================================  ==========================================================
same kind                             the wider one; a signed and an unsigned integer: the
                                      narrowest signed integer that holds both
uint64 with a signed integer          float64, as in numpy: no integer holds both
bool with anything                    the other dtype
integer with a float                  the float, whatever the integer's width, as in torch
float16 with bfloat16                 float32: neither holds the other
two fp8 formats, or fp8 with float16  float16, which holds both fp8 formats exactly
fp8 with bfloat16 or wider            the other dtype
a complex with anything else          complex128 if either holds float64 or the other is it, else
                                      complex64
a Python scalar with an array         the array's dtype if the scalar's kind fits it; a Python
                                      float with an integer or bool array gives float32 (the
                                      default float), a Python int with a bool array gives int32
                                      (the default int), int64 or uint64, the first that holds it;
                                      a Python complex gives the complex of the array's floats
an image with anything                as float32, an image with itself too
====================================  ==========================================================

Images (`ImageDType`) say how a value lies in memory; whoever computes with them reads float32.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpu.core.errors import DTypeError

if TYPE_CHECKING:
    import numpy.typing as npt

PyScalar = bool | int | float
Number = PyScalar | complex
"""What a tensor is combined with, and constants of graphs are."""
Pixels = tuple[int, int]
"""A height and a width."""
NumpyDType = np.dtype[Any]

KIND_ORDER: Final = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


class DType:
    """An element type. There is one object per type, so `is` compares them.

    Attributes:
        name: canonical name, as in ``float32``.
        kind: ``bool``, ``uint``, ``int``, ``float`` or ``complex``.
        bits: width in bits.
        itemsize: width in bytes.
        code: short name used in the text form of the IRs, as in ``f32``.
        min: the smallest number, and `max` the largest; of a complex those of each part.
        is_image: whether it is an `ImageDType`.
    """

    __slots__ = ("bits", "code", "itemsize", "kind", "max", "min", "name")
    is_image = False

    def __init__(self, name: str, kind: str, bits: int, code: str, lo: float, hi: float):
        self.name, self.kind, self.bits, self.code = name, kind, bits, code
        self.itemsize = bits // 8
        self.min, self.max = lo, hi

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype_named, (self.name,))

    @property
    def is_float(self) -> bool:
        """True for fp8, float16, bfloat16, float32 and float64."""
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        """True for complex64 and complex128."""
        return self.kind == "complex"

    @property
    def real(self) -> DType:
        """The float that each part of a complex number is; of other dtypes the dtype itself."""
        return _PARTS.get(self, self)

    @property
    def is_int(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return self.kind in ("int", "uint")

    @property
    def is_whole(self) -> bool:
        """True for integers and bool, whose values have no fraction."""
        return self.kind in ("bool", "int", "uint")

    @property
    def is_signed(self) -> bool:
        """True for signed integers and floats."""
        return self.kind in ("int", "float")

    @property
    def element(self) -> DType:
        """What one element is to those who compute with it: float32 for images, else the dtype."""
        return self

    @property
    def np(self) -> NumpyDType:
        """The numpy dtype with the same bits.

        bfloat16 and fp8 come from `ml_dtypes`, imported on use.
        """
        return _numpy_dtype(self)


class ImageDType(DType):
    """Memory as a picture of `height` rows of `width` pixels, of four halves or floats each.

    Made by `dtypes.imageh` and `dtypes.imagef`. A tensor of it has 4 * height * width elements in
    any shape: in row-major order they are the pixels row by row, of each the components R, G, B,
    A. Elements are read as float32; those of a half image are rounded to float16 when written.

    Attributes:
        height: rows.
        width: pixels of a row.
    """

    __slots__ = ("height", "width")
    is_image = True

    def __init__(self, letter: str, height: int, width: int):
        bits = 16 if letter == "h" else 32
        name, code = f"image{letter}(({height}, {width}))", f"image{letter}{height}x{width}"
        super().__init__(name, "float", bits, code, float("-inf"), float("inf"))
        self.height, self.width = height, width

    @property
    def element(self) -> DType:
        """float32, whatever the image is made of."""
        return dtypes.float32

    @property
    def stored(self) -> DType:
        """What a component is in memory: float16 or float32."""
        return dtypes.float16 if self.bits == 16 else dtypes.float32

    @property
    def size(self) -> int:
        """Number of elements: four for each pixel."""
        return 4 * self.height * self.width

    @property
    def np(self) -> NumpyDType:
        """The numpy dtype of a component in memory."""
        return self.stored.np


def _int(bits: int, signed: bool) -> DType:
    kind = "int" if signed else "uint"
    lo = -(1 << (bits - 1)) if signed else 0
    hi = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    return DType(f"{kind}{bits}", kind, bits, f"{'i' if signed else 'u'}{bits}", lo, hi)


def _float(name: str, bits: int, code: str) -> DType:
    return DType(name, "float", bits, code, float("-inf"), float("inf"))


def _complex(name: str, bits: int, code: str) -> DType:
    return DType(name, "complex", bits, code, float("-inf"), float("inf"))


class dtypes:
    """Namespace of the element types, with torch's and C's names as aliases."""

    bool = DType("bool", "bool", 8, "b1", False, True)
    int8, int16, int32, int64 = (_int(b, True) for b in (8, 16, 32, 64))
    uint8, uint16, uint32, uint64 = (_int(b, False) for b in (8, 16, 32, 64))
    fp8e4m3 = DType("fp8e4m3", "float", 8, "f8e4m3", -448.0, 448.0)
    fp8e5m2 = _float("fp8e5m2", 8, "f8e5m2")
    float16 = _float("float16", 16, "f16")
    bfloat16 = _float("bfloat16", 16, "bf16")
    float32 = _float("float32", 32, "f32")
    float64 = _float("float64", 64, "f64")
    complex64 = _complex("complex64", 64, "c64")
    complex128 = _complex("complex128", 128, "c128")

    half, float, double = float16, float32, float64
    cfloat, cdouble = complex64, complex128
    char, short, int, long = int8, int16, int32, int64
    uchar, ushort, uint, ulong = uint8, uint16, uint32, uint64
    default_float = float32
    default_int = int32

    @staticmethod
    def imageh(shape: Pixels) -> ImageDType:
        """A half image of `shape` (height, width) in pixels. Raises DTypeError."""
        return _image("h", shape)

    @staticmethod
    def imagef(shape: Pixels) -> ImageDType:
        """A float image of `shape` (height, width) in pixels. Raises DTypeError."""
        return _image("f", shape)

    @staticmethod
    def from_numpy(dtype: npt.DTypeLike) -> DType:
        """The element type with the same bits as a numpy dtype.

        Raises DTypeError where there is none, foreign byte orders included.
        """
        try:
            native = np.dtype(dtype)
        except TypeError as error:
            raise DTypeError(f"{dtype!r} is not a numpy dtype") from error
        return _of_numpy_dtype(native)

    @staticmethod
    def of(value: Number) -> DType:
        """The default element type of a Python scalar.

        bool, int32 (int64, then uint64, where the value does not fit), float32 or complex64.
        """
        if isinstance(value, bool):
            return dtypes.bool
        if isinstance(value, int):
            if dtypes.int32.min <= value <= dtypes.int32.max:
                return dtypes.int32
            large = dtypes.int64.max < value <= dtypes.uint64.max
            return dtypes.uint64 if large else dtypes.int64
        return dtypes.complex64 if isinstance(value, complex) else dtypes.default_float


ALL: Final[tuple[DType, ...]] = (
    dtypes.bool,
    dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64,
    dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64,
    dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64,
)  # fmt: skip
"""What kernels compute on. Complex numbers are two floats each there."""
_PARTS: Final = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}
COMPLEXES: Final = tuple(_PARTS)
INTS: Final = tuple(d for d in ALL if d.is_int)
FLOATS: Final = tuple(d for d in ALL if d.is_float)
BY_CODE: Final = {d.code: d for d in (*ALL, *COMPLEXES)}
_ALIASES: Final = {
    "half": "float16", "float": "float32", "double": "float64", "char": "int8", "short": "int16",
    "int": "int32", "long": "int64", "uchar": "uint8", "ushort": "uint16", "uint": "uint32",
    "ulong": "uint64", "bool_": "bool", "float8_e4m3fn": "fp8e4m3", "float8_e5m2": "fp8e5m2",
    "cfloat": "complex64", "cdouble": "complex128",
}  # fmt: skip
_CANONICAL: Final = {d.name: d for d in BY_CODE.values()}
_BY_NAME: Final = _CANONICAL | {alias: _CANONICAL[name] for alias, name in _ALIASES.items()}
_PYTHON_TYPES: Final = (
    (bool, dtypes.bool),
    (int, dtypes.default_int),
    (float, dtypes.default_float),
    (complex, dtypes.complex64),
)
_ML_DTYPES: Final = {"bfloat16": "bfloat16", "fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2"}


_IMAGE_NAME: Final = re.compile(r"image([hf])\(\((\d+), (\d+)\)\)")
_IMAGE_CODE: Final = re.compile(r"image([hf])(\d+)x(\d+)")


def _image(letter: str, shape: Pixels) -> ImageDType:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise DTypeError(
            f"dtypes.image{letter} takes (height, width) in pixels of four elements, both at"
            f" least 1; got {shape!r}"
        )
    return _image_of(letter, *sizes)


@cache
def _image_of(letter: str, height: int, width: int) -> ImageDType:
    return ImageDType(letter, height, width)


def dtype_of_code(code: str) -> DType | None:
    """The dtype that the text form of the IRs calls `code`; None for one that there is not."""
    if found := _IMAGE_CODE.fullmatch(code):
        return _image_of(found[1], int(found[2]), int(found[3]))
    return BY_CODE.get(code)


@cache
def _numpy_dtype(dtype: DType) -> NumpyDType:
    if dtype.name not in _ML_DTYPES:
        return np.dtype(dtype.name)
    import ml_dtypes

    extended: NumpyDType = np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype.name]))
    return extended


@cache
def _of_numpy_dtype(native: NumpyDType) -> DType:
    if not native.isnative:
        raise DTypeError(
            f"numpy dtype {native.str!r} has the other byte order; convert the array with"
            f" .astype({native.newbyteorder('=').str!r})"
        )
    if native.kind not in "biufcV":
        raise DTypeError(f"a tensor holds numbers and bools, and numpy's {native} is neither")
    return dtype_named(native.name)


def dtype_named(name: str) -> DType:
    """The element type called `name` (canonical, torch's or C's).

    Raises DTypeError with a suggestion.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    if found := _IMAGE_NAME.fullmatch(name):
        return _image_of(found[1], int(found[2]), int(found[3]))
    import difflib

    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(_CANONICAL)}"
    raise DTypeError(f"there is no dtype {name!r}{hint}")


def to_dtype(value: DType | str | type[Any] | np.dtype[Any]) -> DType:
    """Reads a dtype argument: a DType, its name, a Python scalar type or a numpy dtype.

    Raises DTypeError for anything else, torch dtypes included (`from_torch_dtype` reads those).
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        return dtype_named(value)
    # `is`, not `in`: np.dtype("int64") == int holds.
    for python_type, dtype in _PYTHON_TYPES:
        if value is python_type:
            return dtype
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return dtypes.from_numpy(value)
    raise DTypeError(
        f"{value!r} is not a dtype; pass one of gpu.dtypes, its name, or a numpy dtype"
    )


def from_torch_dtype(dtype: object) -> DType:
    """The element type of a `torch.dtype`, read by its printed name so that torch is not imported.

    Raises DTypeError where there is no such type here.
    """
    return dtype_named(str(dtype).removeprefix("torch."))


def _kind_rank(d: DType) -> int:
    return KIND_ORDER[d.kind]


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype two arrays combine to, by the table in this module's docstring. Symmetric."""
    a, b = a.element, b.element
    if a is b:
        return a
    if a.is_complex or b.is_complex:
        return complex_of(promote(a.real, b.real))
    if _kind_rank(a) != _kind_rank(b):
        return a if _kind_rank(a) > _kind_rank(b) else b
    if a.is_float:
        return _promote_floats(a, b)
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if unsigned is dtypes.uint64:
        return dtypes.float64
    bits = max(signed.bits, unsigned.bits * 2)
    return dtype_named(f"int{bits}")


def complex_of(dtype: DType) -> DType:
    """The complex dtype whose parts hold a real one: complex128 for float64, else complex64."""
    return dtypes.complex128 if dtype.real is dtypes.float64 else dtypes.complex64


def _promote_floats(a: DType, b: DType) -> DType:
    small, large = sorted((a, b), key=lambda d: d.bits)
    if small.bits == 8 and large.bits == 8:
        return dtypes.float16
    if small.bits == large.bits:
        return dtypes.float32
    return large


def accumulator(dtype: DType) -> DType:
    """The dtype means and products are summed in: float32 for narrower floats, else itself."""
    return dtypes.float32 if dtype.is_float and dtype.bits < 32 else dtype.element


def total_dtype(dtype: DType) -> DType:
    """The dtype of sums and products of many elements.

    int64 for bools and integers, as in torch; for uint64, as in numpy, and for floats and complex
    numbers their own.
    """
    own = dtype.is_float or dtype.is_complex or dtype is dtypes.uint64
    return dtype.element if own else dtypes.int64
