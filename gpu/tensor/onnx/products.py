"""ONNX's products: matrices, convolutions, and both of quantised numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported
from gpu.tensor.nn import maps as F
from gpu.tensor.onnx.values import Value, ints
from gpu.tensor.tensor import Tensor

_CONV: Final = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: Final = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0, broadcast: int = 0,
) -> Tensor:  # fmt: skip
    """alpha a b + beta c, with a and b transposed as is said."""
    product = (a.T if transA else a) @ (b.T if transB else b)
    if alpha != 1.0:
        product = (product * alpha).cast(a.dtype)
    if c is None:
        return product
    return product + (c if beta == 1.0 else (c * beta).cast(a.dtype))


def einsum(*inputs: Tensor, equation: bytes) -> Tensor:
    """A sum of products by Einstein's notation."""
    return Tensor.einsum(equation.decode(), *inputs)


def spatial(rank: int, kind: str) -> int:
    """How many axes are windows'. Raises Unsupported for other than 1 to 3."""
    count = rank - 2
    if count not in (1, 2, 3):
        raise Unsupported(f"{kind} over {count} axes; 1, 2 and 3 are computed")
    return count


def window_pads(
    auto_pad: bytes,
    pads: Sequence[int] | None,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """What is added in front of and behind each axis, by `auto_pad` or as `pads` says."""
    count = len(kernel)
    if auto_pad in (b"NOTSET", b""):
        listed = list(pads or [0] * 2 * count)
        return list(zip(listed[:count], listed[count:], strict=True))
    if auto_pad == b"VALID":
        return [(0, 0)] * count
    result = []
    for n, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-n // stride) - 1) * stride + dilation * (k - 1) + 1 - n)
        half = total // 2
        result.append((half, total - half) if auto_pad == b"SAME_UPPER" else (total - half, half))
    return result


def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, auto_pad: bytes = b"NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """A convolution over 1 to 3 axes."""
    count = spatial(x.ndim, "a convolution")
    strides, dilations = strides or [1] * count, dilations or [1] * count
    widths = window_pads(auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
    if any(before != behind for before, behind in widths):
        x = x.pad([(0, 0), (0, 0), *widths])
        widths = [(0, 0)] * count
    padding = tuple(before for before, _ in widths)
    return _CONV[count](x, w, b, tuple(strides), padding, tuple(dilations), group)


def conv_transpose(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, auto_pad: bytes = b"NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None, output_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """The gradient of a convolution by what it is of."""
    count = spatial(x.ndim, "a transposed convolution")
    strides, dilations = strides or [1] * count, dilations or [1] * count
    added = output_padding or [0] * count
    full = [
        (n - 1) * stride + dilation * (k - 1) + 1 + more
        for n, k, stride, dilation, more in zip(
            x.shape[2:], w.shape[2:], strides, dilations, added, strict=True
        )
    ]
    same = auto_pad in (b"SAME_UPPER", b"SAME_LOWER")
    if output_shape is None and same:
        output_shape = [n * stride for n, stride in zip(x.shape[2:], strides, strict=True)]
    if output_shape is None:
        listed = pads or [0] * 2 * count
        cut = list(zip(listed[:count], listed[count:], strict=True))
    else:
        cut = []
        for n, wanted in zip(full, output_shape[-count:], strict=True):
            total = n - wanted
            cut.append(
                (total // 2, total - total // 2)
                if auto_pad == b"SAME_UPPER"
                else (total - total // 2, total // 2)
            )
    whole = _TRANSPOSED[count](x, w, None, tuple(strides), 0, 0, group, tuple(dilations))
    # Beyond the windows, where `output_padding` reaches, or more is asked for, there are zeros.
    behind = [
        max(0, n - size) + max(0, -b)
        for n, size, (_, b) in zip(full, whole.shape[2:], cut, strict=True)
    ]
    front = [max(0, -a) for a, _ in cut]
    whole = whole.pad([(0, 0), (0, 0), *zip(front, behind, strict=True)])
    kept = [(max(0, a), max(0, a) + n - a - b) for n, (a, b) in zip(full, cut, strict=True)]
    result = whole.shrink([(0, whole.shape[0]), (0, whole.shape[1]), *kept])
    return result if b is None else result + b.reshape(-1, *[1] * count)


def _wide(x: Tensor, zero_point: Tensor | None, axis: int | None = None) -> Tensor:
    """Quantised numbers without their zero, as int32."""
    wide = x.cast(dtypes.int32)
    if zero_point is None:
        return wide
    zero = zero_point.cast(dtypes.int32)
    if zero.ndim == 1 and zero.shape[0] > 1 and axis is not None:
        zero = along(zero, x.ndim, axis)
    return wide - zero


def along(values: Tensor, rank: int, axis: int) -> Tensor:
    """Values of one axis, to broadcast along it."""
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(*shape)


def mat_mul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    """A product of quantised matrices in int32; a's zero by rows, b's by columns."""
    return _wide(a, a_zero_point, -2) @ _wide(b, b_zero_point, -1)


def conv_integer(
    x: Tensor, w: Tensor, x_zero_point: Tensor | None = None, w_zero_point: Tensor | None = None,
    *, auto_pad: bytes = b"NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """A convolution of quantised numbers in int32; outside is x's zero."""
    return conv(
        _wide(x, x_zero_point), _wide(w, w_zero_point, 0), auto_pad=auto_pad, dilations=dilations,
        group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


def quantize_linear(
    x: Tensor, y_scale: Tensor, y_zero_point: Tensor | None = None, *, axis: int = 1,
    saturate: int = 1, block_size: int = 0, output_dtype: int = 0, precision: int = 0,
) -> Tensor:  # fmt: skip
    """Numbers in steps of a scale, to the even one of two, cut at the ends of the dtype."""
    from gpu.tensor.onnx.elementwise import cast
    from gpu.tensor.onnx.values import dtype_of, number_of

    kind = (
        y_zero_point.dtype if y_zero_point is not None
        else dtype_of(output_dtype) if output_dtype else dtypes.uint8
    )  # fmt: skip
    scale = _for_blocks(y_scale, x, axis, block_size).cast(dtypes.float32)
    steps = x.cast(dtypes.float32) / scale
    if kind.is_float:
        return cast(steps, to=number_of(Tensor.zeros(1, dtype=kind)), saturate=saturate)
    steps = steps.round()
    if y_zero_point is not None:
        steps = steps + _for_blocks(y_zero_point, x, axis, block_size).cast(dtypes.float32)
    return saturated(steps, kind)


def saturated(steps: Tensor, kind: DType) -> Tensor:
    """Whole numbers cut at the ends of an integer dtype."""
    return steps.clamp(float(kind.min), float(kind.max)).cast(kind)


def dequantize_linear(
    x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0,
) -> Tensor:  # fmt: skip
    """The numbers that quantised ones stand for."""
    from gpu.tensor.onnx.values import dtype_of

    kind = dtype_of(output_dtype) if output_dtype else x_scale.dtype
    scale = _for_blocks(x_scale, x, axis, block_size)
    if x.dtype.is_float:
        steps = x.cast(dtypes.float32)
    else:
        steps = x.cast(dtypes.int32)
        if x_zero_point is not None:
            steps = steps - _for_blocks(x_zero_point, x, axis, block_size).cast(dtypes.int32)
    return (steps.cast(dtypes.float32) * scale.cast(dtypes.float32)).cast(kind)


def _for_blocks(values: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Scales or zeros, one for all, for places of an axis, or for blocks of it."""
    if values.ndim == 0 or (values.ndim == 1 and values.shape[0] == 1 and not block):
        return values.reshape((1,) * x.ndim)
    if values.ndim == 1 and not block:
        return along(values, x.ndim, axis)
    axis %= x.ndim
    repeated = values.repeat_interleave(block or x.shape[axis], axis)
    return repeated.shrink([(0, n) for n in x.shape])


def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 with the scale and zero that the values themselves ask for."""
    least, most = x.amin().minimum(0.0), x.amax().maximum(0.0)
    scale = (most - least) / 255
    scale = (scale == 0).where(1.0, scale)
    zero = saturated((-least / scale).round(), dtypes.uint8)
    steps = (x / scale).round() + zero.cast(x.dtype)
    return saturated(steps, dtypes.uint8), scale, zero


def _requantized(total: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    steps = (total.cast(dtypes.float32) * scale.cast(dtypes.float32)).round()
    return saturated(steps + zero.cast(dtypes.float32), zero.dtype)


def q_linear_mat_mul(
    a: Tensor, a_scale: Tensor, a_zero_point: Tensor, b: Tensor, b_scale: Tensor,
    b_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor,
) -> Tensor:  # fmt: skip
    """A product of quantised matrices, quantised again."""
    total = mat_mul_integer(a, b, a_zero_point, b_zero_point)
    if a_scale.ndim == 1 and a_scale.shape[0] > 1:
        a_scale = along(a_scale, total.ndim, -2)
    return _requantized(total, a_scale * b_scale / y_scale, y_zero_point)


def q_linear_conv(
    x: Tensor, x_scale: Tensor, x_zero_point: Tensor, w: Tensor, w_scale: Tensor,
    w_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor, b: Tensor | None = None,
    *, auto_pad: bytes = b"NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """A convolution of quantised numbers, quantised again; the bias is in int32."""
    total = conv_integer(
        x, w, x_zero_point, w_zero_point, auto_pad=auto_pad, dilations=dilations, group=group,
        kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    if b is not None:
        total = total + along(b, total.ndim, 1)
    scale = x_scale * w_scale / y_scale
    if scale.ndim == 1 and scale.shape[0] > 1:
        scale = along(scale, total.ndim, 1)
    return _requantized(total, scale, y_zero_point)


def col2im(
    input: Tensor, image_shape: Value, block_shape: Value, *, dilations: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Columns of windows added up to an image."""
    image, block = ints(image_shape, "image_shape"), ints(block_shape, "block_shape")
    count = len(image)
    strides, dilations = strides or [1] * count, dilations or [1] * count
    listed = pads or [0] * 2 * count
    n, columns, _ = input.shape
    channels = columns // math.prod(block)
    padded = [size + listed[i] + listed[count + i] for i, size in enumerate(image)]
    places = [
        (size - dilation * (k - 1) - 1) // stride + 1
        for size, k, stride, dilation in zip(padded, block, strides, dilations, strict=True)
    ]
    x = input.reshape(n * channels, *block, *places)
    # Each axis of windows by a matrix: which place of the image each tap of each window is.
    for i in range(count):
        taps = Tensor.arange(block[i], device=x.device).unsqueeze(1) * dilations[i]
        at = (taps + Tensor.arange(places[i], device=x.device) * strides[i]).flatten()
        pixels = Tensor.arange(padded[i], device=x.device)
        spread = (at.unsqueeze(1) == pixels).cast(x.dtype)
        x = x.moveaxis((1, 1 + count - i), (-2, -1))
        x = x.reshape(*x.shape[:-2], block[i] * places[i]) @ spread
    x = x.reshape(n, channels, *padded)
    cut = [(listed[i], listed[i] + size) for i, size in enumerate(image)]
    return x.shrink([(0, n), (0, channels), *cut])
