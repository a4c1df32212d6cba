"""What ``import gpu`` gives, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gpu
import gpu.dtype
from gpu import Tensor

FACTS = """abs acos acosh add all allclose any arange argmax argmin asin asinh atan atanh backward
bfloat16 binary_crossentropy binary_crossentropy_logits bitcast bitwise_and bitwise_not bitwise_or
bitwise_xor bool cast cat ceil celu chunk clamp clip clone contiguous copysign cos cosh
cross_entropy detach diag diagonal div dot double einsum element_size elu empty empty_like eq erf
exp exp2 expand eye flatten flip float floor fmod full full_like gelu gradient half hardsigmoid
hardswish hardtanh int is_floating_point isclose isfinite isinf isnan item layernorm leaky_relu lerp
linear linspace log log10 log2 log_softmax logaddexp logical_not logsigmoid logsumexp long lshift
masked_fill matmul max maximum mean meshgrid min minimum mish mod mul nbytes ne neg normalize numel
numpy ones ones_like pad pad_to permute pow prod quick_gelu realize rearrange reciprocal relu relu6
repeat repeat_interleave reshape roll round rshift rsqrt selu short shrink shrink_to sigmoid sign
silu sin sinh softmax softmin softplus softsign split sqrt square squeeze stack std std_mean sub sum
swish tan tanh to tolist transpose tril triu trunc unflatten unfold unsqueeze var var_mean view
where zeros zeros_like argsort cummax cummin cumprod cumsum dropout gather glorot_uniform
interpolate kaiming_normal kaiming_uniform logcumsumexp manual_seed masked_select multinomial
newton_schulz nll_loss nonzero normal one_hot rand rand_like randint randn randn_like randperm
scaled_uniform scaled_dot_product_attention scatter scatter_reduce sort
sparse_categorical_crossentropy topk uniform"""


def test_public_names() -> None:
    for name in gpu.__all__:
        assert getattr(gpu, name) is not None
    assert gpu.dtype.dtypes is gpu.dtypes
    assert set(gpu.__all__) <= set(dir(gpu))
    with pytest.raises(AttributeError, match="tensor_"):
        _ = gpu.tensor_


def test_methods_are_there_and_documented() -> None:
    missing = [name for name in FACTS.split() if not getattr(Tensor, name).__doc__]
    assert not missing


def test_import_is_lazy() -> None:
    code = "import gpu, sys; print([m for m in ('numpy', 'llvmlite', 'cffi') if m in sys.modules])"
    folder = Path(gpu.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_show_config(capsys: pytest.CaptureFixture[str]) -> None:
    gpu.show_config()
    assert "DEBUG = " in capsys.readouterr().out


def test_docstring_examples() -> None:
    import doctest

    from gpu.tensor import tensor

    assert doctest.testmod(gpu).failed == doctest.testmod(tensor).failed == 0
