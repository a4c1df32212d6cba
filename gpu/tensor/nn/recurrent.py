"""Recurrent cells, and layers that run them along a sequence.

What gates take from the input is one matrix product for all steps; the rest is a `gpu.scan`, which
is compiled once whatever the length. Weights, their names and their distribution, uniform within
1 / sqrt(hidden_size), are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import choice
from gpu.tensor.nn.module import Module, Named
from gpu.tensor.nn.parameters import count, inverse_root, share, uniform
from gpu.tensor.scan import scan
from gpu.tensor.tensor import Tensor

State = tuple[Tensor, ...]
# (what gates take from the input, from the last hidden state, the last state) -> the next state,
# whose first part is the hidden one.
Step = Callable[[Tensor, Tensor, State], State]


def _lstm(given: Tensor, recurrent: Tensor, state: State) -> State:
    i, f, g, o = (given + recurrent).chunk(4, dim=-1)
    memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * memory.tanh(), memory


def _gru(given: Tensor, recurrent: Tensor, state: State) -> State:
    (r, z, n), (hr, hz, hn) = given.chunk(3, dim=-1), recurrent.chunk(3, dim=-1)
    update = (z + hz).sigmoid()
    new = (n + (r + hr).sigmoid() * hn).tanh()
    return (new + update * (state[0] - new),)


def _tanh(given: Tensor, recurrent: Tensor, state: State) -> State:
    return ((given + recurrent).tanh(),)


def _relu(given: Tensor, recurrent: Tensor, state: State) -> State:
    return ((given + recurrent).relu(),)


@dataclass(frozen=True)
class _Kind:
    """A recurrence.

    Attributes:
        step: what a step computes.
        gates: how many hidden sizes the weights have.
        states: how many tensors the state is.
    """

    step: Step
    gates: int
    states: int


_LSTM: Final = _Kind(_lstm, 4, 2)
_GRU: Final = _Kind(_gru, 3, 1)
_RNN: Final = {"tanh": _Kind(_tanh, 1, 1), "relu": _Kind(_relu, 1, 1)}


class _Cell(Module):
    """One step of a recurrence.

    Attributes:
        weight_ih: shape (gates * hidden_size, input_size).
        weight_hh: shape (gates * hidden_size, hidden_size).
        bias_ih, bias_hh: shape (gates * hidden_size,), or None.
    """

    def __init__(self, kind: _Kind, input_size: int, hidden_size: int, bias: bool):
        self.kind = kind
        self.input_size = count(input_size, "input_size")
        self.hidden_size = count(hidden_size, "hidden_size")
        bound, gates = inverse_root(hidden_size), kind.gates * hidden_size
        self.weight_ih = uniform(bound, gates, input_size)
        self.weight_hh = uniform(bound, gates, hidden_size)
        self.bias_ih = uniform(bound, gates) if bias else None
        self.bias_hh = uniform(bound, gates) if bias else None

    def _next(self, x: Tensor, state: State | None) -> State:
        """The next state, each part of shape (batch, hidden_size), or (hidden_size,)."""
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__} takes an input of shape [batch, {self.input_size}] or "
                f"[{self.input_size}], got {list(x.shape)}"
            )
        if state is None:
            shape = (*x.shape[:-1], self.hidden_size)
            blank = Tensor.zeros(shape, dtype=x.dtype, device=x.device)
            state = (blank,) * self.kind.states
        given = x.linear(self.weight_ih.T, self.bias_ih)
        recurrent = state[0].linear(self.weight_hh.T, self.bias_hh)
        return self.kind.step(given, recurrent, state)


class LSTMCell(_Cell):
    """One step of a long short-term memory.

    Gates i, f, g, o are the four quarters of x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh.

    Attributes:
        weight_ih: shape (4 * hidden_size, input_size).
        weight_hh: shape (4 * hidden_size, hidden_size).
        bias_ih, bias_hh: shape (4 * hidden_size,), or None.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        super().__init__(_LSTM, input_size, hidden_size, bias)

    def forward(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next (h, c), each of shape (batch, hidden_size), or (hidden_size,).

        Args:
            x: shape (batch, input_size), or (input_size,).
            hc: the last result; zeros if not given.
        """
        hidden, memory = self._next(x, hc)
        return hidden, memory


class GRUCell(_Cell):
    """One step of a gated recurrent unit.

    Gates r, z, n are the three thirds of x @ weight_ih.T + bias_ih and of h @ weight_hh.T +
    bias_hh, which r multiplies in n.

    Attributes:
        weight_ih: shape (3 * hidden_size, input_size).
        weight_hh: shape (3 * hidden_size, hidden_size).
        bias_ih, bias_hh: shape (3 * hidden_size,), or None.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        super().__init__(_GRU, input_size, hidden_size, bias)

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        """The next state, shape (batch, hidden_size), or (hidden_size,); `h` is the last one."""
        return self._next(x, None if h is None else (h,))[0]


class RNNCell(_Cell):
    """`nonlinearity`, "tanh" or "relu", of x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh.

    Attributes:
        weight_ih: shape (hidden_size, input_size).
        weight_hh: shape (hidden_size, hidden_size).
        bias_ih, bias_hh: shape (hidden_size,), or None.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"
    ):
        choice(nonlinearity, "nonlinearity", tuple(_RNN))
        super().__init__(_RNN[nonlinearity], input_size, hidden_size, bias)

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        """The next state, shape (batch, hidden_size), or (hidden_size,); `h` is the last one."""
        return self._next(x, None if h is None else (h,))[0]


class _Recurrent(Named):
    """Layers of a recurrence one upon the other, each in one direction or in both.

    Parts, for layer k, with "_reverse" behind the name for the direction from the end:

        weight_ih_lk: shape (gates * hidden_size, width of what the layer is given).
        weight_hh_lk: shape (gates * hidden_size, proj_size or hidden_size).
        bias_ih_lk, bias_hh_lk: shape (gates * hidden_size,), unless `bias` is False.
        weight_hr_lk: shape (proj_size, hidden_size), if there is a `proj_size`.
    """

    def __init__(
        self,
        kind: _Kind,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int = 0,
    ):
        self.kind = kind
        self.input_size = count(input_size, "input_size")
        self.hidden_size = count(hidden_size, "hidden_size")
        self.num_layers = count(num_layers, "num_layers")
        if not 0 <= proj_size < hidden_size:
            raise InvalidValue(f"proj_size must be in 0..{hidden_size - 1}, got {proj_size}")
        self.batch_first, self.dropout = batch_first, share(dropout, "dropout")
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self.width = proj_size or hidden_size
        self.directions = ("", "_reverse") if bidirectional else ("",)
        bound, gates = inverse_root(hidden_size), kind.gates * hidden_size
        parts: dict[str, Tensor] = {}
        for layer in range(num_layers):
            for direction in self.directions:
                end = f"_l{layer}{direction}"
                given = len(self.directions) * self.width if layer else input_size
                parts["weight_ih" + end] = uniform(bound, gates, given)
                parts["weight_hh" + end] = uniform(bound, gates, self.width)
                if bias:
                    parts["bias_ih" + end] = uniform(bound, gates)
                    parts["bias_hh" + end] = uniform(bound, gates)
                if proj_size:
                    parts["weight_hr" + end] = uniform(bound, proj_size, hidden_size)
        super().__init__(parts)

    def _run(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """What the last layer gives in each step, and the last state, as `LSTM` has them."""
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__} takes an input of shape [length, batch, {self.input_size}] "
                f"([batch, length, {self.input_size}] with batch_first), or [length, "
                f"{self.input_size}] of one sequence, got {list(x.shape)}"
            )
        one = x.ndim == 2
        steps = x.unsqueeze(1) if one else x.transpose(0, 1) if self.batch_first else x
        if not steps.shape[0]:
            raise ShapeError(f"{type(self).__name__} takes one step or more, got {list(x.shape)}")
        lines = self._first(steps, state, one)
        lasts: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                steps = steps.dropout(self.dropout)
            ways = []
            for number, direction in enumerate(self.directions):
                first = lines[layer * len(self.directions) + number]
                last, way = self._one_way(steps, first, f"_l{layer}{direction}")
                lasts.append(last)
                ways.append(way)
            steps = Tensor.cat(*ways, dim=-1) if len(ways) > 1 else ways[0]
        finals = tuple(Tensor.stack(*part) for part in zip(*lasts, strict=True))
        if one:
            return steps.squeeze(1), tuple(final.squeeze(1) for final in finals)
        return steps.transpose(0, 1) if self.batch_first else steps, finals

    def _one_way(self, steps: Tensor, first: State, end: str) -> tuple[State, Tensor]:
        """The last state and the hidden ones of a layer in one direction."""
        parts, step, reverse = self.parts, self.kind.step, end.endswith("_reverse")
        given = steps.linear(parts["weight_ih" + end].T, parts.get("bias_ih" + end))
        weight, bias = parts["weight_hh" + end].T, parts.get("bias_hh" + end)
        project = parts.get("weight_hr" + end)

        def body(state: State, now: Tensor) -> tuple[State, Tensor]:
            hidden, *memory = step(now, state[0].linear(weight, bias), state)
            hidden = hidden if project is None else hidden.linear(project.T)
            return (hidden, *memory), hidden

        start = tuple(part.cast(given.dtype) for part in first)
        last, hidden = scan(body, start, given, reverse=reverse)
        return last, hidden

    def _first(self, steps: Tensor, state: State | None, one: bool) -> list[State]:
        """The state that each layer and direction begins with."""
        batch, ways = steps.shape[1], self.num_layers * len(self.directions)
        widths = (self.width, self.hidden_size)[: self.kind.states]
        if state is None:
            blank = tuple(
                Tensor.zeros(batch, width, dtype=steps.dtype, device=steps.device)
                for width in widths
            )
            return [blank] * ways
        for part, width in zip(state, widths, strict=True):
            wanted = (ways, width) if one else (ways, batch, width)
            if part.shape != wanted:
                raise ShapeError(
                    f"a state of {type(self).__name__} has shape {list(part.shape)}, expected "
                    f"{list(wanted)}"
                )
        whole = [part.unsqueeze(1) if one else part for part in state]
        return [tuple(part[number] for part in whole) for number in range(ways)]


class LSTM(_Recurrent):
    """Long short-term memories along a sequence: `LSTMCell` for each step.

    Args:
        input_size: elements of a step of the input.
        hidden_size: elements of a state.
        num_layers: layers, each of which reads what the one before it gives.
        bias: whether there are biases.
        batch_first: whether input and output are (batch, length, ...) and not (length, batch, ...).
        dropout: share of elements set to 0 between layers, while `Tensor.training` is set.
        bidirectional: whether each layer also runs from the end, with weights of its own.
        proj_size: the hidden state is projected to so many elements, if not 0.

    >>> from gpu import Tensor
    >>> out, (h, c) = LSTM(3, 5, bidirectional=True)(Tensor.ones(7, 2, 3))
    >>> out.shape, h.shape, c.shape
    ((7, 2, 10), (2, 2, 5), (2, 2, 5))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
    ):
        super().__init__(
            _LSTM,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
        )

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The hidden states of the last layer, and the last (h, c) of all of them.

        Args:
            input: (length, batch, input_size); (batch, length, input_size) with `batch_first`; or
                (length, input_size), of one sequence.
            hx: the first (h, c), zeros if not given: (layers * directions, batch, width of h or c),
                of one sequence without the batch. So are the last.
        """
        out, (hidden, memory) = self._run(input, hx)
        return out, (hidden, memory)


class _OneState(_Recurrent):
    """A recurrence whose state is one tensor."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The hidden states of the last layer, and the last one of all layers: as of `LSTM`."""
        out, (hidden,) = self._run(input, None if hx is None else (hx,))
        return out, hidden


class GRU(_OneState):
    """Gated recurrent units along a sequence: `GRUCell` for each step; arguments as of `LSTM`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ):
        super().__init__(
            _GRU, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )


class RNN(_OneState):
    """`RNNCell` for each step of a sequence, with its `nonlinearity`; arguments as of `LSTM`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ):
        choice(nonlinearity, "nonlinearity", tuple(_RNN))
        kind = _RNN[nonlinearity]
        super().__init__(
            kind, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
