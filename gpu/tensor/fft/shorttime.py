"""Short-time Fourier transforms, by torch's names and rules."""

from __future__ import annotations

import math

from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import integer
from gpu.tensor.complexmath import number, parts
from gpu.tensor.fft.transforms import Norm, fft, ifft, irfft, rfft
from gpu.tensor.gradients import check_tensor
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import active

# What torch takes for no window at all.
_LEAST_ENVELOPE = 1e-11


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool = True,
) -> Tensor:
    """Transforms of frames of a signal, which may overlap.

    Args:
        input: signals of shape (time,) or (batch, time).
        n_fft: numbers in a frame.
        hop_length: how far apart frames begin; a quarter of `n_fft` by default.
        win_length: numbers of the window, `n_fft` by default; zeros are around fewer.
        window: what frames are multiplied with; ones by default.
        center: whether frame t is around the place t * hop_length: the signal is padded then.
        pad_mode: how, as `Tensor.pad` takes it.
        normalized: whether transforms are divided by the root of `n_fft`.
        onesided: whether only the first n_fft // 2 + 1 numbers of each are given, which tell the
            others; by default for real signals and windows.
        return_complex: whether numbers are complex, else pairs along a last axis.

    Returns complex numbers of shape (batch, frequencies, frames). Raises ShapeError for a signal of
    other axes or shorter than a frame, and InvalidValue for lengths that do not fit each other.

    >>> from gpu import Tensor, fft
    >>> fft.stft(Tensor.ones(2, 64), 16).shape
    (2, 9, 17)
    """
    check_tensor(input, "input")
    hop, length = _lengths(n_fft, hop_length, win_length)
    weights = _window(window, n_fft, length)
    if input.ndim not in (1, 2):
        raise ShapeError(f"stft takes (time,) or (batch, time), got shape {list(input.shape)}")
    x = input if input.ndim == 2 else input.unsqueeze(0)
    if center:
        x = x.pad([None, (n_fft // 2, n_fft // 2)], pad_mode)
    if x.shape[-1] < n_fft:
        raise ShapeError(f"a frame of {n_fft} numbers is longer than a signal of {x.shape[-1]}")
    frames = x.unfold(-1, n_fft, hop)
    if weights is not None:
        frames = frames.mul(weights.to(x.device))
    is_complex = frames.dtype.is_complex
    if onesided and is_complex:
        raise InvalidValue("onesided is for real signals and windows; pass onesided=False")
    half = not is_complex if onesided is None else onesided
    spectra = (rfft if half else fft)(frames, norm="ortho" if normalized else None)
    result = spectra.transpose(-1, -2)
    result = result if input.ndim == 2 else result.squeeze(0)
    return result if return_complex else result.view_as_real()


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal of which `input` is the `stft` with these arguments.

    Frames are weighed with the window, added up, and divided by the sum of its squares.

    Args:
        input: complex numbers of shape (frequencies, frames) or (batch, frequencies, frames).
        n_fft: numbers in a frame.
        hop_length: how far apart frames begin; a quarter of `n_fft` by default.
        win_length: numbers of the window, `n_fft` by default.
        window: what frames were multiplied with; ones by default.
        center: whether frames are around their places.
        normalized: whether transforms were divided by the root of `n_fft`.
        onesided: whether there are n_fft // 2 + 1 frequencies; by default where there are not
            `n_fft`.
        length: of the signal: longer ones are cut, shorter ones end in zeros.
        return_complex: whether the signal is complex.

    Raises ShapeError for other shapes, and InvalidValue for lengths that do not fit each other and
    for windows that leave nothing of some place of the signal (not looked for inside `jit`).
    """
    check_tensor(input, "input")
    hop, size = _lengths(n_fft, hop_length, win_length)
    weights = _window(window, n_fft, size)
    if not input.dtype.is_complex or input.ndim not in (2, 3):
        raise ShapeError(
            "istft takes complex numbers of shape (frequencies, frames) or (batch, frequencies,"
            f" frames), got {input._described()}"
        )
    spectra = (input if input.ndim == 3 else input.unsqueeze(0)).transpose(-1, -2)
    half = spectra.shape[-1] != n_fft if onesided is None else onesided
    wanted = n_fft // 2 + 1 if half else n_fft
    if spectra.shape[-1] != wanted:
        raise ShapeError(
            f"n_fft={n_fft} makes {wanted} frequencies, and the input has {spectra.shape[-1]}"
        )
    if half and return_complex:
        raise InvalidValue("half of the frequencies make a real signal; pass onesided=False")
    norm: Norm = "ortho" if normalized else None
    frames = irfft(spectra, n_fft, norm=norm) if half else ifft(spectra, norm=norm)
    frames = frames if return_complex or half else frames.real
    signal = _joined(frames, weights, hop, n_fft // 2 if center else 0, length)
    return signal if input.ndim == 3 else signal.squeeze(0)


def _joined(
    frames: Tensor, weights: Tensor | None, hop: int, start: int, length: int | None
) -> Tensor:
    """The signal of frames (batch, count, size), which begins at `start` of the first."""
    _, count, n_fft = frames.shape
    if weights is None:
        weights = Tensor.ones(n_fft)
    weights = weights.to(frames.device)
    squares = weights.mul(weights.conj()).real.reshape(1, 1, n_fft).expand(1, count, n_fft)
    whole = n_fft + hop * (count - 1)
    end = whole - start if length is None else min(start + length, whole)
    envelope = _added(squares, hop).narrow(-1, start, end - start)
    if active() is None and envelope.abs().min().item() < _LEAST_ENVELOPE:
        raise InvalidValue(
            "windows leave nothing of some place of the signal: take a shorter hop_length, or a"
            " window without zeros at its ends"
        )
    signal = _added(frames.mul(weights), hop).narrow(-1, start, end - start).div(envelope)
    if length is not None and length > end - start:
        signal = signal.pad([None, (0, length - (end - start))])
    return signal


def _lengths(n_fft: int, hop_length: int | None, win_length: int | None) -> tuple[int, int]:
    """The distance of frames and the length of the window."""
    size = integer(n_fft, "n_fft")
    hop = size // 4 if hop_length is None else integer(hop_length, "hop_length")
    length = size if win_length is None else integer(win_length, "win_length")
    if size < 1 or hop < 1 or not 1 <= length <= size:
        raise InvalidValue(
            "n_fft and hop_length must be at least 1 and win_length in 1..n_fft, got"
            f" n_fft={n_fft}, hop_length={hop}, win_length={length}"
        )
    return hop, length


def _window(window: Tensor | None, n_fft: int, length: int) -> Tensor | None:
    """A window in the middle of a frame; None for one of ones."""
    if window is None:
        if length == n_fft:
            return None
        window = Tensor.ones(length)
    check_tensor(window, "window")
    if window.shape != (length,):
        raise ShapeError(f"the window must have {length} numbers, got shape {list(window.shape)}")
    before = (n_fft - length) // 2
    return window.pad([(before, n_fft - length - before)])


def _added(frames: Tensor, hop: int) -> Tensor:
    """Frames (batch, count, size), each so far behind the one before, added up: (batch, time).

    In pieces as long as the distance: piece k of a frame meets piece k - 1 of the next one.
    """
    batch, count, size = frames.shape
    if frames.dtype.is_complex:
        re, im = (_added(part, hop) for part in parts(frames))
        return number(re, im)
    pieces = math.ceil(size / hop)
    padded = frames.pad([None, None, (0, pieces * hop - size)]).reshape(batch, count, pieces, hop)
    places = count + pieces - 1
    shifted = padded._wrap(G.unskew(padded._node, 1, 2, 1, 1, places))
    return shifted.sum(2).reshape(batch, places * hop).narrow(-1, 0, size + hop * (count - 1))
