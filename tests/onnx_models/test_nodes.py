"""ONNX's own test cases of operators, which come with its package and its expected results."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.core.errors import Unsupported
from gpu.nn.onnx import load
from gpu.tensor.onnx.reading import Reader
from gpu.tensor.onnx.table import OPS

RANDOM = ("bernoulli", "training_dropout")  # whose results are drawn
STRINGS = ("equal_string",)
TYPES = (
    "UINT4",
    "INT4",
    "UINT2",
    "INT2",
    "FLOAT4E2M1",
    "FNUZ",
    "E8M0",
    "e8m0",
    "uint4",
    "int4",
    "uint2",
    "int2",
    "float4e2m1",
)
DEFINED = (
    "Attention",
    "Bernoulli",
    "RotaryEmbedding",
    "LinearAttention",
    "CausalConvWithState",
    "SwiGLU",
    "ReduceMean",
)
"""Some of those that ONNX defines as functions of others, besides the table's."""

NAMES = sorted({*OPS, *DEFINED, "If", "Loop", "Scan", "Constant", "SequenceMap"})


@cache
def cases() -> dict[str, list[Any]]:
    """All of them by the operator of their first node, and by that in their name."""
    from onnx.backend.test.case.node import collect_testcases

    result = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            result[case.model.graph.node[0].op_type].append(case)
    return result


def given(value: Any) -> Any:
    if isinstance(value, list):
        return [given(item) for item in value]
    if hasattr(value, "data_type"):  # bfloat16 and fp8, as the file has them
        return Reader(None, "CPU").tensor(value, "an input")
    return value


def compare(found: Any, expected: Any, rtol: float, atol: float) -> None:
    from onnx import numpy_helper

    if expected is None or isinstance(expected, list):
        assert found is None if expected is None else len(found) == len(expected)
        for one, other in zip(found or [], expected or [], strict=True):
            compare(one, other, rtol, atol)
        return
    if hasattr(expected, "data_type"):
        expected = numpy_helper.to_array(expected)
    values = found.numpy() if isinstance(found, Tensor) else found
    expected = np.asarray(expected)
    assert values.shape == expected.shape and str(values.dtype) == str(expected.dtype)
    if str(expected.dtype) == "bfloat16":
        rtol, atol = 2e-2, 1e-2
    elif expected.dtype == np.float16:
        rtol, atol = 1e-2, 2e-3
    if expected.dtype.kind in "biuO":
        np.testing.assert_array_equal(values, expected)
    elif expected.dtype.kind == "c":
        np.testing.assert_allclose(values, expected, rtol=rtol, atol=atol)
    else:
        wide = values.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
def test_operator(name: str, need: Callable[[str], None]) -> None:
    need("onnx")
    for case in cases()[name]:
        if any(part in case.name for part in RANDOM + STRINGS):
            continue
        try:
            model = load(case.model.SerializeToString(), "CPU")
            for inputs, outputs in case.data_sets:
                results = model(*map(given, inputs))
                rows = results if isinstance(results, tuple) else (results,)
                for found, expected in zip(rows, outputs, strict=True):
                    compare(found, expected, max(case.rtol, 1e-4), max(case.atol, 1e-6))
        except Unsupported as error:
            small = any(part in case.name for part in TYPES)
            old = name == "Scan" and "version 9" in str(error)
            assert small or old, (case.name, error)
        except Exception as error:
            error.add_note(case.name)
            raise
