"""Which function computes which of ONNX's operators.

A function takes the operator's inputs by position, None for one that is left out, and its
attributes by name. What it may ask for besides, by parameters of these names: `opset`, the version
of its operators that the model is written for; `outputs`, how many results are used; `device`,
where a result of no tensors shall live.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpu.tensor.onnx import (
    elementwise,
    indexed,
    layers,
    movement,
    products,
    randomness,
    reductions,
    sequences,
    windows,
)
from gpu.tensor.tensor import Tensor

_ASKED: Final = ("opset", "outputs", "device")


class Op(NamedTuple):
    """How an operator is computed.

    Attributes:
        function: of its inputs and attributes.
        host: which inputs it takes as arrays, since they say how and not what it computes.
        asked: which of `opset`, `outputs` and `device` it wants to know.
        foldable: whether it is computed at once of arrays; not what draws or keeps lists.
    """

    function: Callable[..., Any]
    host: tuple[int, ...]
    asked: tuple[str, ...]
    foldable: bool


def _op(function: Callable[..., Any], *host: int, foldable: bool = True) -> Op:
    names = inspect.signature(function).parameters
    return Op(function, host, tuple(name for name in _ASKED if name in names), foldable)


def _listed(function: Callable[..., Any], *host: int) -> Op:
    return _op(function, *host, foldable=False)


OPS: Final[dict[str, Op]] = {
    "Abs": _op(Tensor.abs),
    "Acos": _op(Tensor.acos),
    "Acosh": _op(Tensor.acosh),
    "Add": _op(Tensor.add),
    "AffineGrid": _op(windows.affine_grid, 1),
    "And": _op(Tensor.logical_and),
    "ArgMax": _op(reductions.arg_max),
    "ArgMin": _op(reductions.arg_min),
    "Asin": _op(Tensor.asin),
    "Asinh": _op(Tensor.asinh),
    "Atan": _op(Tensor.atan),
    "Atanh": _op(Tensor.atanh),
    "AveragePool": _op(windows.average_pool),
    "BatchNormalization": _op(layers.batch_normalization),
    "BitCast": _op(elementwise.bit_cast),
    "BitShift": _op(elementwise.bit_shift),
    "BitwiseAnd": _op(Tensor.bitwise_and),
    "BitwiseNot": _op(Tensor.bitwise_not),
    "BitwiseOr": _op(Tensor.bitwise_or),
    "BitwiseXor": _op(Tensor.bitwise_xor),
    "BlackmanWindow": _listed(layers.window("blackman"), 0),
    "Cast": _op(elementwise.cast),
    "CastLike": _op(elementwise.cast_like),
    "Ceil": _op(Tensor.ceil),
    "Celu": _op(Tensor.celu),
    "CenterCropPad": _op(movement.center_crop_pad, 1),
    "Clip": _op(elementwise.clip),
    "Col2Im": _op(products.col2im, 1, 2),
    "Compress": _op(indexed.compress),
    "Concat": _op(movement.concat),
    "ConcatFromSequence": _listed(sequences.concat_from_sequence),
    "ConstantOfShape": _listed(movement.constant_of_shape, 0),
    "Conv": _op(products.conv),
    "ConvInteger": _op(products.conv_integer),
    "ConvTranspose": _op(products.conv_transpose),
    "Cos": _op(Tensor.cos),
    "Cosh": _op(Tensor.cosh),
    "CumProd": _op(reductions.cum_prod, 1),
    "CumSum": _op(reductions.cum_sum, 1),
    "DFT": _op(layers.dft, 1, 2),
    "DepthToSpace": _op(movement.depth_to_space),
    "DequantizeLinear": _op(products.dequantize_linear),
    "Det": _op(layers.det),
    "Div": _op(elementwise.div),
    "Dropout": _listed(elementwise.dropout, 1, 2),
    "DynamicQuantizeLinear": _op(products.dynamic_quantize_linear),
    "Einsum": _op(products.einsum),
    "Elu": _op(Tensor.elu),
    "Equal": _op(Tensor.eq),
    "Erf": _op(Tensor.erf),
    "Exp": _op(Tensor.exp),
    "Expand": _op(movement.expand, 1),
    "EyeLike": _op(movement.eye_like),
    "Flatten": _op(movement.flatten),
    "Floor": _op(Tensor.floor),
    "GRU": _op(layers.gru),
    "Gather": _op(indexed.gather),
    "GatherElements": _op(indexed.gather_elements),
    "GatherND": _op(indexed.gather_nd),
    "Gelu": _op(elementwise.gelu),
    "Gemm": _op(products.gemm),
    "GlobalAveragePool": _op(windows.global_pool(average=True)),
    "GlobalMaxPool": _op(windows.global_pool(average=False)),
    "Greater": _op(Tensor.gt),
    "GreaterOrEqual": _op(Tensor.ge),
    "GridSample": _op(windows.grid_sample),
    "GroupNormalization": _op(layers.group_normalization),
    "HammingWindow": _listed(layers.window("hamming"), 0),
    "HannWindow": _listed(layers.window("hann"), 0),
    "HardSigmoid": _op(elementwise.hard_sigmoid),
    "HardSwish": _op(elementwise.hard_swish),
    "Hardmax": _op(elementwise.hardmax),
    "Identity": _listed(sequences.identity),
    "InstanceNormalization": _op(layers.instance_normalization),
    "IsInf": _op(elementwise.is_inf),
    "IsNaN": _op(Tensor.isnan),
    "LRN": _op(layers.lrn),
    "LSTM": _op(layers.lstm),
    "LayerNormalization": _op(layers.layer_normalization),
    "LeakyRelu": _op(elementwise.leaky_relu),
    "Less": _op(Tensor.lt),
    "LessOrEqual": _op(Tensor.le),
    "Log": _op(Tensor.log),
    "LogSoftmax": _op(elementwise.log_softmax),
    "LpNormalization": _op(reductions.lp_normalization),
    "LpPool": _op(windows.lp_pool),
    "MatMul": _op(Tensor.matmul),
    "MatMulInteger": _op(products.mat_mul_integer),
    "Max": _op(elementwise.max_),
    "MaxPool": _op(windows.max_pool),
    "MaxUnpool": _op(windows.max_unpool, 2),
    "Mean": _op(elementwise.mean),
    "MeanVarianceNormalization": _op(layers.mean_variance_normalization),
    "MelWeightMatrix": _listed(layers.mel_weight_matrix, 0, 1, 2, 3, 4),
    "Min": _op(elementwise.min_),
    "Mish": _op(Tensor.mish),
    "Mod": _op(elementwise.mod),
    "Mul": _op(Tensor.mul),
    "Multinomial": _listed(randomness.multinomial),
    "Neg": _op(Tensor.neg),
    "NegativeLogLikelihoodLoss": _op(layers.nll_loss),
    "NonMaxSuppression": _op(indexed.non_max_suppression, 2, 3, 4),
    "NonZero": _op(indexed.non_zero),
    "Not": _op(Tensor.logical_not),
    "OneHot": _op(indexed.one_hot, 1),
    "Optional": _listed(sequences.optional),
    "OptionalGetElement": _listed(sequences.identity),
    "OptionalHasElement": _listed(sequences.optional_has_element),
    "Or": _op(Tensor.logical_or),
    "PRelu": _op(elementwise.prelu),
    "Pad": _op(movement.pad, 1, 2, 3),
    "Pow": _op(elementwise.pow_),
    "QLinearConv": _op(products.q_linear_conv),
    "QLinearMatMul": _op(products.q_linear_mat_mul),
    "QuantizeLinear": _op(products.quantize_linear),
    "RMSNormalization": _op(layers.rms_normalization),
    "RNN": _op(layers.rnn),
    "RandomNormal": _listed(randomness.random_normal),
    "RandomNormalLike": _listed(randomness.random_normal_like),
    "RandomUniform": _listed(randomness.random_uniform),
    "RandomUniformLike": _listed(randomness.random_uniform_like),
    "Range": _listed(movement.range_, 0, 1, 2),
    "Reciprocal": _op(Tensor.reciprocal),
    "ReduceL1": _op(reductions.reduce_l1, 1),
    "ReduceL2": _op(reductions.reduce_l2, 1),
    "ReduceLogSum": _op(reductions.reduce_log_sum, 1),
    "ReduceLogSumExp": _op(reductions.reduce_log_sum_exp, 1),
    "ReduceMax": _op(reductions.reduce_max, 1),
    "ReduceMean": _op(reductions.reduce_mean, 1),
    "ReduceMin": _op(reductions.reduce_min, 1),
    "ReduceProd": _op(reductions.reduce_prod, 1),
    "ReduceSum": _op(reductions.reduce_sum, 1),
    "ReduceSumSquare": _op(reductions.reduce_sum_square, 1),
    "Relu": _op(Tensor.relu),
    "Reshape": _op(movement.reshape, 1),
    "Resize": _op(windows.resize, 1, 2, 3),
    "ReverseSequence": _op(movement.reverse_sequence),
    "RoiAlign": _op(windows.roi_align),
    "Round": _op(Tensor.round),
    "STFT": _op(layers.stft, 1, 3),
    "Scatter": _op(indexed.scatter_elements),
    "ScatterElements": _op(indexed.scatter_elements),
    "ScatterND": _op(indexed.scatter_nd),
    "Selu": _op(elementwise.selu),
    "SequenceAt": _listed(sequences.sequence_at, 1),
    "SequenceConstruct": _listed(sequences.sequence_construct),
    "SequenceEmpty": _listed(sequences.sequence_empty),
    "SequenceErase": _listed(sequences.sequence_erase, 1),
    "SequenceInsert": _listed(sequences.sequence_insert, 2),
    "SequenceLength": _listed(sequences.sequence_length),
    "Shape": _listed(movement.shape),
    "Shrink": _op(elementwise.shrink),
    "Sigmoid": _op(Tensor.sigmoid),
    "Sign": _op(Tensor.sign),
    "Sin": _op(Tensor.sin),
    "Sinh": _op(Tensor.sinh),
    "Size": _listed(movement.size),
    "Slice": _op(movement.slice_, 1, 2, 3, 4),
    "Softmax": _op(elementwise.softmax),
    "SoftmaxCrossEntropyLoss": _op(layers.softmax_cross_entropy_loss),
    "Softplus": _op(elementwise.softplus),
    "Softsign": _op(Tensor.softsign),
    "SpaceToDepth": _op(movement.space_to_depth),
    "Split": _op(movement.split, 1),
    "SplitToSequence": _listed(movement.split_to_sequence, 1),
    "Sqrt": _op(Tensor.sqrt),
    "Squeeze": _op(movement.squeeze, 1),
    "Sub": _op(Tensor.sub),
    "Sum": _op(elementwise.sum_),
    "Swish": _op(elementwise.swish),
    "Tan": _op(Tensor.tan),
    "Tanh": _op(Tensor.tanh),
    "TensorScatter": _op(indexed.tensor_scatter),
    "ThresholdedRelu": _op(elementwise.thresholded_relu),
    "Tile": _op(movement.tile, 1),
    "TopK": _op(reductions.top_k, 1),
    "Transpose": _op(movement.transpose),
    "Trilu": _op(movement.trilu, 1),
    "Unique": _op(indexed.unique),
    "Unsqueeze": _op(movement.unsqueeze, 1),
    "Upsample": _op(windows.upsample, 1),
    "Where": _op(Tensor.where),
    "Xor": _op(Tensor.logical_xor),
}
"""By the operator's name, in ONNX's own domain. `model.py` has those with graphs of their own."""
