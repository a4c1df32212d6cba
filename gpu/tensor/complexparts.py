"""Complex tensors: their parts, which are views, and what is made of them."""

from __future__ import annotations

import math
from typing import Self

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes, promote
from gpu.core.errors import DTypeError
from gpu.tensor.arguments import Operand
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.views import AsComplex, AsReal, Part


class ComplexParts(Elementwise):
    """Parts of complex numbers, and complex numbers of parts."""

    __slots__ = ()

    def is_complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self.dtype.is_complex

    @property
    def real(self) -> Self:
        """The real part, a view that can be written to; of real numbers they themselves.

        >>> from gpu import Tensor
        >>> z = Tensor([1 + 2j, 3 - 4j])
        >>> z.real[0] = 7
        >>> z.tolist(), z.imag.tolist()
        ([(7+2j), (3-4j)], [2.0, -4.0])
        """
        return self._viewed(Part(0)) if self.dtype.is_complex else self

    @real.setter
    def real(self, value: Operand) -> None:
        self.real.assign(value)  # type: ignore[attr-defined]

    @property
    def imag(self) -> Self:
        """The imaginary part, a view that can be written to. Raises DTypeError for real numbers."""
        self._require_complex("imag")
        return self._viewed(Part(1))

    @imag.setter
    def imag(self, value: Operand) -> None:
        self.imag.assign(value)  # type: ignore[attr-defined]

    def view_as_real(self) -> Self:
        """A view as floats: the last axis, of size 2, has real and imaginary part."""
        self._require_complex("view_as_real")
        return self._viewed(AsReal())

    def view_as_complex(self) -> Self:
        """A view of pairs of floats as complex numbers: the reverse of `view_as_real`.

        Raises DTypeError for a dtype other than float32 and float64, or a last axis that is not of
        size 2.
        """
        if self.dtype not in (dtypes.float32, dtypes.float64) or self.shape[-1:] != (2,):
            raise DTypeError(
                "view_as_complex takes float32 or float64 with a last axis of size 2, got"
                f" {self._described()}"
            )
        return self._viewed(AsComplex())

    def isreal(self) -> Self:
        """Where the imaginary part is 0: everywhere, of numbers that have none."""
        return self.imag.eq(0) if self.dtype.is_complex else self._filled(1).cast(dtypes.bool)

    def conj(self) -> Self:
        """The conjugate: the imaginary part negated; real numbers stay as they are."""
        if not self.dtype.is_complex:
            return self._same()
        return self._wrap(G.conj(self._node))

    def angle(self) -> Self:
        """The angle to the positive real axis, in -pi..pi: of real numbers 0, pi or NaN."""
        if self.dtype.is_complex:
            return self._of_complex("angle")
        x = self._as_float()
        return x.isnan().where(x, x.lt(0).where(math.pi, 0).cast(x.dtype))

    def cfloat(self) -> Self:
        """self as complex64."""
        return self.cast(dtypes.complex64)

    def cdouble(self) -> Self:
        """self as complex128."""
        return self.cast(dtypes.complex128)

    def complex(self, imag: Operand) -> Self:
        """Complex numbers whose real part is self: ``Tensor.complex(real, imag)``.

        Both are promoted to one dtype, float32 or float64. Raises DTypeError for others.
        """
        re, im = self._pair(imag)
        return self._of_parts(re, im, "complex")

    def polar(self, angle: Operand) -> Self:
        """Complex numbers of which self is the magnitude: ``Tensor.polar(abs, angle)``."""
        size, turn = self._pair(angle)
        return self._of_parts(size.mul(turn.cos()), size.mul(turn.sin()), "polar")

    def _of_parts(self, re: Self, im: Self, name: str) -> Self:
        wide = promote(re.dtype, dtypes.float32)
        if re.dtype.is_complex:
            raise DTypeError(f"{name} takes real numbers, got {re.dtype.name}")
        return self._wrap(G.complex_number(G.cast(re._node, wide), G.cast(im._node, wide)))

    def _require_complex(self, name: str) -> None:
        if not self.dtype.is_complex:
            raise DTypeError(f"{name} is of complex numbers, and this is {self._described()}")
