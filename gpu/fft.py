"""Fourier transforms by numpy's names, and torch's `stft`, `istft`, `hfftn` and their like.

>>> from gpu import Tensor, fft
>>> fft.rfft(Tensor([1.0, 2.0, 3.0, 4.0])).tolist()
[(10+0j), (-2+2j), (-2+0j)]
>>> fft.irfft(fft.rfft(Tensor([1.0, 2.0, 3.0, 4.0]))).tolist()
[1.0, 2.0, 3.0, 4.0]

Of any length, on every device; float64 where the device has it. They have gradients, and are
compiled inside `jit`.
"""

from __future__ import annotations

from gpu.tensor.fft.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from gpu.tensor.fft.shorttime import istft, stft
from gpu.tensor.fft.transforms import (
    fft,
    fft2,
    fftn,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfft2",
    "hfftn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "istft",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "stft",
]
