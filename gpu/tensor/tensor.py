"""The public tensor."""

from __future__ import annotations

from gpu.tensor.casts import Casts
from gpu.tensor.creation import Creation
from gpu.tensor.loss import Loss
from gpu.tensor.notation import Notation
from gpu.tensor.operators import Operators


class Tensor(Operators, Loss, Notation, Creation, Casts):
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
    it. How dtypes combine is told in `gpu/core/dtype.py`.
    """

    __slots__ = ()
