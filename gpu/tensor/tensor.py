"""The public tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu.tensor.casts import Casts
from gpu.tensor.complexparts import ComplexParts
from gpu.tensor.convolution import Convolution
from gpu.tensor.copying import Copying
from gpu.tensor.creation import Creation
from gpu.tensor.cudaarrays import INTERFACE, NOT_OFFERED
from gpu.tensor.decompositions import Decompositions
from gpu.tensor.display import Display
from gpu.tensor.distribution import Distribution
from gpu.tensor.draws import Draws
from gpu.tensor.indexed import Indexed
from gpu.tensor.inplace import with_methods_in_place
from gpu.tensor.interop import Interop
from gpu.tensor.interpolation import Interpolation
from gpu.tensor.loss import Loss
from gpu.tensor.normalization import Normalization
from gpu.tensor.notation import Notation
from gpu.tensor.operators import Operators
from gpu.tensor.pooling import Pooling
from gpu.tensor.products import Products
from gpu.tensor.sharding import Sharding
from gpu.tensor.special.methods import Special
from gpu.tensor.synonyms import accepts_torch_keywords


@with_methods_in_place
@accepts_torch_keywords
class Tensor(
    Draws, Operators, Products, Decompositions, Distribution, Indexed, ComplexParts, Special, Loss,
    Interpolation, Convolution, Pooling, Normalization, Notation, Creation, Casts, Interop,
    Sharding, Copying, Display,
):  # fmt: skip
    """A tensor: a lazy value on a device, computed when it is asked for.

    >>> from gpu import Tensor
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> y = (x @ x.T).sum()
    >>> y.item()
    52.0
    >>> y.backward().grad is None, x.grad.tolist()
    (True, [[8.0, 12.0], [8.0, 12.0]])

    Operations check shapes, dtypes and devices at once and compute later, together; `realize`,
    `numpy`, `item` and `tolist` compute now. Operands on the other side of an operator may be
    numbers, nested lists and numpy arrays; numbers take the tensor's dtype where their kind fits
    it. How dtypes combine is told in `gpu/core/dtype.py`. Keywords may have torch's names
    (`gpu/tensor/synonyms.py`).
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_why_missing(name), name=name, obj=self)


def _why_missing(name: str) -> str:
    if name == INTERFACE:
        return NOT_OFFERED
    if name.startswith("__"):  # libraries ask for protocols so
        return f"a Tensor has no attribute {name!r}"
    from gpu.tensor.torchnames import missing_from_tensor

    return missing_from_tensor(name, dir(Tensor))
