"""ONNX's norms, losses, recurrent layers and transforms. Parameters as inputs and attributes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, Final

import numpy as np

from gpu.core.dtype import dtypes
from gpu.core.errors import InvalidValue, Unsupported
from gpu.tensor.fft.transforms import fft, ifft, irfft, rfft
from gpu.tensor.linalg import systems
from gpu.tensor.onnx import elementwise
from gpu.tensor.onnx.products import along
from gpu.tensor.onnx.values import Value, one
from gpu.tensor.scan import scan
from gpu.tensor.tensor import Tensor


def batch_normalization(
    x: Tensor, scale: Tensor, b: Tensor, input_mean: Tensor, input_var: Tensor, *,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0, spatial: int = 1,
    outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """By the statistics that are given; with `training_mode` by those of the batch."""
    mean, var = input_mean, input_var
    if training_mode:
        axes = (0, *range(2, x.ndim))
        mean, var = x.mean(axes), x.var(axes, correction=0)
    m, v, s, shift = (along(t, x.ndim, 1) for t in (mean, var, scale, b))
    y = ((x - m) * (v + epsilon).rsqrt() * s + shift).cast(x.dtype)
    if outputs == 1:
        return y
    return (
        y,
        input_mean * momentum + mean * (1 - momentum),
        input_var * momentum + var * (1 - momentum),
    )


def instance_normalization(
    input: Tensor, scale: Tensor, b: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    """Each channel of each image by itself."""
    y = input.layernorm(tuple(range(2, input.ndim)), epsilon)
    return y * along(scale, input.ndim, 1) + along(b, input.ndim, 1)


def layer_normalization(
    x: Tensor, scale: Tensor, b: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1, outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """Over all axes from one on; then the mean, and one over the deviation, in float32."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.cast(dtypes.float32) if stash_type == 1 and x.dtype.bits < 32 else x
    mean = wide.mean(axes, True)
    inverse = ((wide - mean).square().mean(axes, True) + epsilon).rsqrt()
    y = ((wide - mean) * inverse).cast(x.dtype) * scale
    if b is not None:
        y = y + b
    return (y, mean, inverse)[:outputs] if outputs > 1 else y


def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """By the root of the mean of squares over all axes from one on."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.cast(dtypes.float32) if stash_type == 1 and x.dtype.bits < 32 else x
    y = wide * (wide.square().mean(axes, True) + epsilon).rsqrt()
    return y.cast(x.dtype) * scale


def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:  # fmt: skip
    """Over groups of channels; scales are of groups before version 21, of channels since."""
    rows = x.reshape(x.shape[0], num_groups, -1)
    y = rows.layernorm(-1, epsilon).reshape(x.shape)
    if scale.shape[0] == num_groups != x.shape[1]:
        scale, bias = (t.repeat_interleave(x.shape[1] // num_groups) for t in (scale, bias))
    return y * along(scale, x.ndim, 1) + along(bias, x.ndim, 1)


def mean_variance_normalization(x: Tensor, *, axes: list[int] | None = None) -> Tensor:
    """Mean 0 and deviation 1 over some axes."""
    listed = tuple(axes or (0, 2, 3))
    mean = x.mean(listed, True)
    return (x - mean) / ((x.square().mean(listed, True) - mean.square()).sqrt() + 1e-9)


def lrn(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """Divided by a power of the sum of squares over neighbouring channels."""
    before = (size - 1) // 2
    widths = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = x.square().pad(widths)
    n = x.shape[1]
    total = reduce(Tensor.add, (squares.narrow(1, i, n) for i in range(size)))
    return x / (bias + alpha / size * total).pow(beta)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *,
    ignore_index: int | None = None, reduction: bytes = b"mean",
) -> Tensor:  # fmt: skip
    """Minus the logarithms of the probabilities of what is right, weighted by its class."""
    places = target.cast(dtypes.int64)
    kept = None if ignore_index is None else places != ignore_index
    if kept is not None:
        places = kept.where(places, 0)
    loss = -input.gather(1, places.unsqueeze(1)).squeeze(1)
    weights = (
        None if weight is None else weight.index_select(0, places.flatten()).reshape(places.shape)
    )
    if kept is not None:
        weights = kept.cast(input.dtype) if weights is None else kept.where(weights, 0)
    if weights is not None:
        loss = loss * weights
    if reduction == b"none":
        return loss
    if reduction == b"sum":
        return loss.sum()
    return loss.mean() if weights is None else loss.sum() / weights.sum()


def softmax_cross_entropy_loss(
    scores: Tensor, labels: Tensor, weights: Tensor | None = None, *,
    ignore_index: int | None = None, reduction: bytes = b"mean", outputs: int = 1,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """`nll_loss` of a `log_softmax`, which is the second result."""
    logs = scores.log_softmax(1)
    loss = nll_loss(logs, labels, weights, ignore_index=ignore_index, reduction=reduction)
    return (loss, logs) if outputs > 1 else loss


def _affine(x: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    return x * alpha + beta


def _scaled_tanh(x: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    return alpha * (x * beta).tanh()


# What recurrent layers apply, and which of its numbers the model may give.
_ACTIVATIONS: Final[dict[bytes, tuple[Callable[..., Tensor], tuple[str, ...]]]] = {
    b"relu": (Tensor.relu, ()),
    b"tanh": (Tensor.tanh, ()),
    b"sigmoid": (Tensor.sigmoid, ()),
    b"affine": (_affine, ("alpha", "beta")),
    b"leakyrelu": (elementwise.leaky_relu, ("alpha",)),
    b"thresholdedrelu": (elementwise.thresholded_relu, ("alpha",)),
    b"scaledtanh": (_scaled_tanh, ("alpha", "beta")),
    b"hardsigmoid": (elementwise.hard_sigmoid, ("alpha", "beta")),
    b"elu": (Tensor.elu, ("alpha",)),
    b"softsign": (Tensor.softsign, ()),
    b"softplus": (elementwise.softplus, ()),
}


def _activations(
    names: list[bytes], alpha: list[float], beta: list[float]
) -> list[Callable[[Tensor], Tensor]]:
    given = {"alpha": list(alpha), "beta": list(beta)}
    result: list[Callable[[Tensor], Tensor]] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise Unsupported(f"a recurrent layer with {name.decode()!r}, which ONNX does not name")
        function, numbers = _ACTIVATIONS[name.lower()]
        own = {number: given[number].pop(0) for number in numbers if given[number]}
        result.append(partial(function, **own))
    return result


def _one_way(
    gate: Callable[..., list[Tensor]], begin: list[Tensor], given: Tensor, lengths: Tensor | None,
    backward: bool,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """All steps in one direction: the last states, and the first state of each step."""

    def body(carry: list[Tensor], taken: tuple[Tensor, Tensor]) -> tuple[list[Tensor], Tensor]:
        value, at = taken
        new = gate(value, carry)
        if lengths is None:
            return new, new[0]
        alive = at < lengths  # past its end a sequence stays as it is
        kept = [alive.where(n, old) for n, old in zip(new, carry, strict=True)]
        return kept, alive.where(kept[0], 0)

    steps = Tensor.arange(given.shape[0], device=given.device).reshape(-1, 1, 1)
    return scan(body, begin, (given, steps), reverse=backward)


def _recurrent(
    kind: str, gates: int, default: list[bytes], step: Callable[..., list[Tensor]], states: int,
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, sequence_lens: Tensor | None,
    initial: list[Tensor | None], attributes: dict[str, Any], p: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Both directions of a recurrent layer; `step` gives new states of gates and states."""
    layout, direction = attributes.pop("layout", 0), attributes.pop("direction", b"forward")
    names = attributes.pop("activations", None)
    alpha, beta = attributes.pop("activation_alpha", []), attributes.pop("activation_beta", [])
    clip = attributes.pop("clip", None)
    hidden = attributes.pop("hidden_size", r.shape[-1])
    options = {"input_forget": attributes.pop("input_forget", 0)} if kind == "LSTM" else {}
    if kind == "GRU":
        options = {"linear_before_reset": attributes.pop("linear_before_reset", 0)}
    if attributes:
        raise Unsupported(f"{kind} with the attributes {sorted(attributes)}")
    if layout:
        x = x.transpose(0, 1)
        initial = [None if s is None else s.transpose(0, 1) for s in initial]
    batch = x.shape[1]
    count = w.shape[0]
    names = names or default * count
    each = len(names) // count
    ys, lasts = [], []
    lengths = None if sequence_lens is None else sequence_lens.reshape(-1, 1)
    functions = _activations(names, alpha, beta)
    for d in range(count):
        zeros = Tensor.zeros(2 * gates * hidden, dtype=x.dtype, device=x.device)
        bias = zeros if b is None else b[d]
        begin = [
            Tensor.zeros(batch, hidden, dtype=x.dtype, device=x.device) if s is None else s[d]
            for s in initial
        ]
        gate = partial(
            step, functions[d * each : (d + 1) * each], r=r[d], bias=bias[gates * hidden :],
            p=None if p is None else p[d], clip=clip, **options,
        )  # fmt: skip
        given = x @ w[d].T + bias[: gates * hidden]
        last, y = _one_way(gate, begin, given, lengths, direction == b"reverse" or d == 1)
        ys.append(y)
        lasts.append(last)
    y = Tensor.stack(*ys, dim=1)  # (length, directions, batch, hidden)
    final = [Tensor.stack(*(last[i] for last in lasts)) for i in range(states)]
    if layout:
        return (y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in final))
    return (y, *final)


def _cut(value: Tensor, clip: float | None) -> Tensor:
    return value if clip is None else value.clamp(-clip, clip)


def _rnn_step(
    f: Any, given: Tensor, state: list[Tensor], r: Tensor, bias: Tensor, p: None, clip: float | None
) -> list[Tensor]:
    return [f[0](_cut(given + state[0] @ r.T + bias, clip))]


def _gru_step(
    f: Any, given: Tensor, state: list[Tensor], r: Tensor, bias: Tensor, p: None,
    clip: float | None, linear_before_reset: int,
) -> list[Tensor]:  # fmt: skip
    h = state[0]
    n = h.shape[-1]
    both = f[0](_cut(given[..., : 2 * n] + h @ r[: 2 * n].T + bias[: 2 * n], clip))
    update, reset = both[..., :n], both[..., n:]
    if linear_before_reset:
        inner = reset * (h @ r[2 * n :].T + bias[2 * n :])
    else:
        inner = (reset * h) @ r[2 * n :].T + bias[2 * n :]
    new = f[1](_cut(given[..., 2 * n :] + inner, clip))
    return [(1 - update) * new + update * h]


def _lstm_step(
    f: Any, given: Tensor, state: list[Tensor], r: Tensor, bias: Tensor, p: Tensor | None,
    clip: float | None, input_forget: int,
) -> list[Tensor]:  # fmt: skip
    h, c = state
    n = h.shape[-1]
    gates = given + h @ r.T + bias
    i, o, forget, new = (gates[..., k * n : (k + 1) * n] for k in range(4))
    if p is not None:
        i, forget = i + p[:n] * c, forget + p[2 * n :] * c
    i = f[0](_cut(i, clip))
    forget = 1 - i if input_forget else f[0](_cut(forget, clip))
    c = forget * c + i * f[1](_cut(new, clip))
    if p is not None:
        o = o + p[n : 2 * n] * c
    return [f[0](_cut(o, clip)) * f[2](c), c]


def rnn(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, **attributes: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A recurrent layer of one state."""
    return _recurrent(
        "RNN", 1, [b"Tanh"], _rnn_step, 1, x, w, r, b, sequence_lens, [initial_h], attributes
    )


def gru(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, **attributes: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gated recurrent units."""
    default = [b"Sigmoid", b"Tanh"]
    return _recurrent(
        "GRU", 3, default, _gru_step, 1, x, w, r, b, sequence_lens, [initial_h], attributes
    )


def lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, initial_c: Tensor | None = None, p: Tensor | None = None,
    **attributes: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Long short-term memory, with peepholes where `p` is given."""
    default, initial = [b"Sigmoid", b"Tanh", b"Tanh"], [initial_h, initial_c]
    return _recurrent(
        "LSTM", 4, default, _lstm_step, 2, x, w, r, b, sequence_lens, initial, attributes, p
    )


def det(x: Tensor) -> Tensor:
    """The determinants of matrices."""
    return systems.det(x)


def dft(
    input: Tensor, dft_length: Value = None, axis: Value = None, *, inverse: int = 0,
    onesided: int = 0, opset: int, **attribute: Any,
) -> Tensor:  # fmt: skip
    """A Fourier transform of numbers whose last axis is 1, or 2 for the two parts."""
    place = (
        one(axis, "axis") if axis is not None else attribute.get("axis", 1 if opset < 20 else -2)
    )
    length = None if dft_length is None else one(dft_length, "dft_length")
    place %= input.ndim
    pair = input.shape[-1] == 2
    if inverse and onesided:
        whole = irfft(input.contiguous().view_as_complex(), length, place)
        return whole.unsqueeze(-1)
    if onesided:
        return rfft(input.squeeze(-1), length, place).view_as_real()
    values = input.contiguous().view_as_complex() if pair else input.squeeze(-1)
    return (ifft if inverse else fft)(values, length, place).view_as_real()


def stft(
    signal: Tensor, frame_step: Value, window: Tensor | None = None, frame_length: Value = None,
    *, onesided: int = 1,
) -> Tensor:  # fmt: skip
    """Fourier transforms of frames of a signal."""
    step = one(frame_step, "frame_step")
    if frame_length is not None:
        n = one(frame_length, "frame_length")
    elif window is not None:
        n = window.shape[0]
    else:
        raise InvalidValue("STFT has neither a window nor a frame_length; it has to have one")
    pair = signal.ndim == 3 and signal.shape[-1] == 2
    values = signal if signal.ndim == 2 or pair else signal.squeeze(-1)
    frames = (values.shape[1] - n) // step + 1
    at = np.arange(frames)[:, None] * step + np.arange(n)
    taken = values.index_select(1, Tensor(at.reshape(-1), device=signal.device))
    taken = taken.reshape(values.shape[0], frames, n, *values.shape[2:])
    if window is not None:
        taken = taken * (window.unsqueeze(-1) if pair else window)
    if pair:
        return fft(taken.contiguous().view_as_complex(), None, -1).view_as_real()
    return (rfft if onesided else fft)(taken, None, -1).view_as_real()


def window(kind: str) -> Callable[..., Tensor]:
    """Hann's, Hamming's or Blackman's window by its coefficients in ONNX."""
    terms = {
        "hann": (0.5, 0.5, 0.0),
        "hamming": (25 / 46, 21 / 46, 0.0),
        "blackman": (0.42, 0.5, 0.08),
    }[kind]

    def operator(
        size: Value, *, output_datatype: int = 1, periodic: int = 1, device: str
    ) -> Tensor:
        from gpu.tensor.onnx.values import dtype_of

        n = int(one(size, "size"))
        at = 2 * math.pi * np.arange(n) / (n if periodic else n - 1)
        values = terms[0] - terms[1] * np.cos(at) + terms[2] * np.cos(2 * at)
        return Tensor(values.astype(np.float32), device=device).cast(dtype_of(output_datatype))

    return operator


def mel_weight_matrix(
    num_mel_bins: Value, dft_length: Value, sample_rate: Value, lower_edge_hertz: Value,
    upper_edge_hertz: Value, *, output_datatype: int = 1, device: str,
) -> Tensor:  # fmt: skip
    """Weights from a spectrum's bins to triangles on the mel scale."""
    from gpu.tensor.onnx.values import dtype_of

    bins, length, rate = (int(one(v, "a size")) for v in (num_mel_bins, dft_length, sample_rate))
    edges = [float(one(v, "an edge")) for v in (lower_edge_hertz, upper_edge_hertz)]
    low, high = (2595 * math.log10(1 + edge / 700) for edge in edges)
    mel = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    places = ((length + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate).astype(np.int64)
    result = np.zeros((length // 2 + 1, bins), np.float32)
    for i in range(bins):
        left, center, right = places[i : i + 3]
        if center == left:
            result[center, i] = 1
        else:
            result[left : center + 1, i] = np.arange(center - left + 1) / (center - left)
        if right > center:
            result[center:right, i] = (right - np.arange(center, right)) / (right - center)
    return Tensor(result, device=device).cast(dtype_of(output_datatype))
