"""The extension of Fourier transforms."""

from __future__ import annotations

from gpu.tensor.array_api.arguments import Axis, Dtype
from gpu.tensor.fft import frequencies, transforms
from gpu.tensor.fft.transforms import Axes, Norm, Sizes
from gpu.tensor.tensor import Tensor

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]


def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.fft`."""
    return transforms.fft(x, n, axis, norm)


def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.ifft`."""
    return transforms.ifft(x, n, axis, norm)


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.rfft`."""
    return transforms.rfft(x, n, axis, norm)


def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.irfft`."""
    return transforms.irfft(x, n, axis, norm)


def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.hfft`."""
    return transforms.hfft(x, n, axis, norm)


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.ihfft`."""
    return transforms.ihfft(x, n, axis, norm)


def fftn(x: Tensor, /, *, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.fftn`."""
    return transforms.fftn(x, s, axes, norm)


def ifftn(x: Tensor, /, *, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.ifftn`."""
    return transforms.ifftn(x, s, axes, norm)


def rfftn(x: Tensor, /, *, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.rfftn`."""
    return transforms.rfftn(x, s, axes, norm)


def irfftn(x: Tensor, /, *, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """`gpu.fft.irfftn`."""
    return transforms.irfftn(x, s, axes, norm)


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: Dtype | None = None, device: str | None = None
) -> Tensor:
    """`gpu.fft.fftfreq`."""
    return frequencies.fftfreq(n, d, dtype=dtype, device=device)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: Dtype | None = None, device: str | None = None
) -> Tensor:
    """`gpu.fft.rfftfreq`."""
    return frequencies.rfftfreq(n, d, dtype=dtype, device=device)


def fftshift(x: Tensor, /, *, axes: Axis = None) -> Tensor:
    """`gpu.fft.fftshift`."""
    return frequencies.fftshift(x, axes)


def ifftshift(x: Tensor, /, *, axes: Axis = None) -> Tensor:
    """`gpu.fft.ifftshift`."""
    return frequencies.ifftshift(x, axes)
