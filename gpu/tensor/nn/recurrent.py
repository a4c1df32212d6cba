"""Recurrent cells."""

from __future__ import annotations

from gpu.core.errors import ShapeError
from gpu.tensor.nn.parameters import count, inverse_root, uniform
from gpu.tensor.tensor import Tensor


class LSTMCell:
    """One step of a long short-term memory.

    Gates i, f, g, o are the four quarters of x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh.

    Attributes:
        weight_ih: shape (4 * hidden_size, input_size).
        weight_hh: shape (4 * hidden_size, hidden_size).
        bias_ih, bias_hh: shape (4 * hidden_size,), or None. All are uniform within
            1 / sqrt(hidden_size), as in torch.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        self.input_size = count(input_size, "input_size")
        self.hidden_size = count(hidden_size, "hidden_size")
        bound, gates = inverse_root(hidden_size), 4 * hidden_size
        self.weight_ih = uniform(bound, gates, input_size)
        self.weight_hh = uniform(bound, gates, hidden_size)
        self.bias_ih = uniform(bound, gates) if bias else None
        self.bias_hh = uniform(bound, gates) if bias else None

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next (h, c), each of shape (batch, hidden_size).

        Args:
            x: shape (batch, input_size).
            hc: the last result; zeros if not given.
        """
        if x.ndim != 2 or x.shape[1] != self.input_size:
            raise ShapeError(
                f"LSTMCell takes an input of shape [batch, {self.input_size}], got {list(x.shape)}"
            )
        if hc is None:
            blank = Tensor.zeros(x.shape[0], self.hidden_size, dtype=x.dtype, device=x.device)
            hc = (blank, blank)
        hidden, memory = hc
        gates = x.linear(self.weight_ih.T, self.bias_ih) + hidden.linear(
            self.weight_hh.T, self.bias_hh
        )
        i, f, g, o = gates.chunk(4, dim=1)
        new = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        return o.sigmoid() * new.tanh(), new
