"""The processes that work together, and what they do with tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.arguments import whole
from gpu.core.callsite import user_call_site
from gpu.core.dtype import DType
from gpu.core.errors import CollectiveMismatch, InvalidType, InvalidValue, ShapeError, Unsupported
from gpu.core.unpicklable import Unpicklable
from gpu.distributed import exchange, messages
from gpu.distributed.arriving import Arriving, as_bytes
from gpu.distributed.call import Call, Traffic, take_traffic
from gpu.distributed.engine import Engine, World
from gpu.distributed.exchange import Bytes, Steps
from gpu.distributed.messages import What
from gpu.distributed.reducing import check_operation, reduction
from gpu.runtime.execute import has_value
from gpu.tensor.customgrad import given
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import refuse

_LARGEST_TAG: Final = (1 << 14) - 1
_OF_GRADIENTS: Final = 1 << 14  # tags from here on; MPI promises numbers up to 32767
_LETTER: Final = 4096  # bytes before what is sent to one rank
# Gives the steps of a collective, of the bytes that go and those that come.
Move = Callable[[exchange.Wire, Bytes, Bytes], Steps]
Tensors = Sequence[Tensor] | Tensor


class Group(Unpicklable):
    """All processes of the program: what `init` gives.

    Each method is called by all ranks, in one order, with tensors of one shape and dtype. It starts
    at once, whether or not its result is used, and computes its operand for that; it is done while
    the program goes on, and whoever needs the result waits. The names and what they mean are
    torch.distributed's; results are new tensors, through which gradients flow, as of torch's
    ``torch.distributed.nn.functional``, and operands stay as they are. A program's gradients are
    those of the sum of what all ranks differentiate.

    Whatever waits raises PeerLost where a rank is dead, hangs or has ended, at most
    ``MPI_TIMEOUT`` seconds and one more after the call; CollectiveMismatch where ranks call
    different things; DistributedError where MPI fails. Ranks can go on together after a mismatch
    that all of them got at the same collective, and after nothing else of these.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
        local_rank: its number among those of this host.
        local_size: how many of them this host has.
        host: the name of this host, as MPI has it.
        devices: the names of this rank's own devices, of which the first is the default.
    """

    def __init__(self, engine: Engine | None, host: str, devices: tuple[str, ...]):
        """The group over an engine's processes; None is for one that is alone."""
        self._engine, self.host, self.devices = engine, host, devices
        self._enter()

    def _enter(self) -> None:
        """Takes its place among the processes that there are."""
        engine, host = self._engine, self.host
        world = engine.world if engine else World(0, 1, 0, 1, [host])
        self.rank, self.size = world.rank, world.size
        self.local_rank, self.local_size = world.local_rank, world.local_size

    def __repr__(self) -> str:
        return f"<Group rank={self.rank} of {self.size} on {self.host}, {', '.join(self.devices)}>"

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """What all ranks give, joined element by element; the same bits on all ranks.

        Args:
            tensor: of one shape and dtype on all ranks. float16, bfloat16 and fp8 are added in
                float32, in the order of ranks, and rounded once.
            op: "sum", "avg", "product", "min" or "max"; "band", "bor" and "bxor" for integers. Of
                bools a sum is whether one is True.

        Raises InvalidValue and DTypeError for an operation that there is not for the dtype.

        >>> from gpu import Tensor, distributed
        >>> group = distributed.init()
        >>> group.all_reduce(Tensor([1.0, 2.0])).tolist()  # of one process
        [1.0, 2.0]
        """
        tensor = self._checked(tensor, "all_reduce")
        op = check_operation(op, tensor.dtype)
        if self.size == 1:
            return tensor._same()
        if _by_gradient_rules(op, tensor.dtype):
            return _joined(self._gathered(tensor, "all_reduce", f"op={op!r}"), op)
        if tensor.dtype.is_complex:
            return self.all_reduce(tensor.view_as_real(), op).view_as_complex()
        reduce, itemsize = reduction(op, tensor.dtype), tensor.dtype.itemsize

        def move(wire: exchange.Wire, own: Bytes, out: Bytes) -> Steps:
            return exchange.all_reduce(wire, own, out, reduce, itemsize)

        what = _what("all_reduce", tensor, f"op={op!r}")
        return self._moved(tensor, what, tensor.shape, move, _Backward(self, _of_all_reduce, op))

    def reduce_scatter(self, tensors: Tensors, op: str = "sum") -> Tensor:
        """What all ranks give for this one, joined as by `all_reduce`.

        Args:
            tensors: one for each rank, of one shape; or a tensor whose first axis they lie along.
            op: as of `all_reduce`.

        Raises ShapeError where they are not one for each rank.
        """
        stacked = self._checked(self._stacked(tensors, "reduce_scatter"), "reduce_scatter")
        op = check_operation(op, stacked.dtype)
        if self.size == 1:
            return stacked[0]._same()
        if _by_gradient_rules(op, stacked.dtype):
            return _joined(self._exchanged(stacked, "reduce_scatter", f"op={op!r}"), op)
        if stacked.dtype.is_complex:
            return self.reduce_scatter(stacked.view_as_real(), op).view_as_complex()
        reduce = reduction(op, stacked.dtype)

        def move(wire: exchange.Wire, own: Bytes, out: Bytes) -> Steps:
            return exchange.reduce_scatter(wire, own, out, reduce)

        what = _what("reduce_scatter", stacked, f"op={op!r}")
        rule = _Backward(self, _of_reduce_scatter, op)
        return self._moved(stacked, what, stacked.shape[1:], move, rule)

    def all_gather(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """What each rank gives, in the order of ranks."""
        tensor = self._checked(tensor, "all_gather")
        if self.size == 1:
            return (tensor._same(),)
        return self._apart(self._gathered(tensor, "all_gather"))

    def all_to_all(self, tensors: Tensors) -> tuple[Tensor, ...]:
        """What each rank gives for this one, in the order of ranks.

        Args:
            tensors: one for each rank, of one shape; or a tensor whose first axis they lie along.

        Raises ShapeError where they are not one for each rank.
        """
        stacked = self._checked(self._stacked(tensors, "all_to_all"), "all_to_all")
        return self._apart(self._exchanged(stacked, "all_to_all"))

    def broadcast(self, tensor: Tensor, src: int) -> Tensor:
        """What rank `src` gives; of the others' tensors shape and dtype count, which are the same.

        Raises InvalidValue where there is no rank `src`.
        """
        tensor, root = self._checked(tensor, "broadcast"), self._known_rank(src, "src")
        if self.size == 1:
            return tensor._same()
        if tensor.dtype.is_complex:
            return self.broadcast(tensor.view_as_real(), root).view_as_complex()

        def move(wire: exchange.Wire, own: Bytes, out: Bytes) -> Steps:
            if wire.rank == root:
                out[:] = own
            return exchange.broadcast(wire, out, root)

        what = _what("broadcast", tensor, f"src={root}")
        return self._moved(tensor, what, tensor.shape, move, _Backward(self, _of_broadcast, root))

    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> Tensor:
        """Sends a tensor to rank `dst`, which calls `recv`.

        Gives a zero: the gradient of what `dst` computes from the tensor comes by way of it, where
        `backward` is called of it or of a sum that it is added to.

        Raises InvalidValue for a rank that there is not or that is this one, and for a tag that is
        not from 0 to 16383.
        """
        return self._send(tensor, dst, whole(tag, "tag", 0, _LARGEST_TAG))

    def recv(self, tensor: Tensor, src: int, tag: int = 0) -> Tensor:
        """What rank `src` sends: a tensor of the shape, dtype and device of `tensor`.

        Where `tensor` has requires_grad=True, `backward` sends the gradient of the result back, as
        long as there is `tensor`.
        Raises as `send`.
        """
        return self._recv(tensor, src, whole(tag, "tag", 0, _LARGEST_TAG))

    def barrier(self) -> None:
        """Waits until all ranks have called it."""
        if self._engine is not None:
            refuse("barrier between processes")
            call = Call(What("barrier"), user_call_site(), lambda engine, c: engine.agree(c))
            self._engine.start(call).wait()

    def traffic(self) -> Traffic:
        """What collectives moved since this was called before, how long, and what was hidden.

        >>> from gpu import distributed
        >>> distributed.init().traffic().hidden  # a process that is alone waits for none
        1.0
        """
        return take_traffic()

    def _tell_all(self, what: What, own: dict[str, Any], lane: int = 0) -> list[dict[str, Any]]:
        """A message of each rank, of which this one's is `own`; in lane 1 it is told among saves.

        Raises CollectiveMismatch where ranks call something else in lane 0.
        """
        if self._engine is None:
            return [own]
        letters: list[dict[str, Any]] = []

        def make(engine: Engine, call: Call) -> Steps:
            if not lane:
                yield from engine.agree(call)
            yield from engine.tell_all(own, letters, lane)

        self._engine.start(Call(what, user_call_site(), make, lane=lane)).wait()
        return letters

    # What they are made of.

    def _gathered(self, tensor: Tensor, name: str, how: str = "") -> Tensor:
        """What each rank gives, along a new first axis."""
        if tensor.dtype.is_complex:
            return self._gathered(tensor.view_as_real(), name, how).view_as_complex()
        shape = (self.size, *tensor.shape)
        rule = _Backward(self, _of_all_gather)
        return self._moved(tensor, _what(name, tensor, how), shape, exchange.all_gather, rule)

    def _exchanged(self, stacked: Tensor, name: str, how: str = "") -> Tensor:
        """What each rank gives for this one, along the first axis."""
        if self.size == 1:
            return stacked._same()
        if stacked.dtype.is_complex:
            return self._exchanged(stacked.view_as_real(), name, how).view_as_complex()
        what, rule = _what(name, stacked, how), _Backward(self, _of_all_to_all)
        return self._moved(stacked, what, stacked.shape, exchange.all_to_all, rule)

    def _send(self, tensor: Tensor, dst: int, tag: int) -> Tensor:
        peer = self._other_rank(dst, "dst")
        tensor = _as_floats(self._checked(tensor, "send"))
        own = _bytes_of(tensor)
        what = _what("send", tensor, f"dst={peer}, tag={tag}")
        site = user_call_site()
        header = {"tensor": f"{what.dtype}{list(what.shape)}", "line": messages.place_of(site)}

        def make(engine: Engine, call: Call) -> Steps:
            letter = np.full(_LETTER, ord(" "), np.uint8)
            text = messages.pack(header)
            letter[: text.size] = text
            yield engine.direct.send(letter, peer, tag) + engine.direct.send(own, peer, tag)

        self._started(Call(what, site, make, peer, own, nbytes=own.size))
        zero = Tensor(0.0, dtype=tensor.dtype if has_gradient(tensor.dtype) else None)
        zero = zero.to(tensor.device)
        return _with_gradient(zero._node, _Backward(self, _of_send, (peer, tag)), tensor)

    def _recv(self, tensor: Tensor, src: int, tag: int) -> Tensor:
        peer = self._other_rank(src, "src")
        tensor = self._checked(tensor, "recv")
        if tensor.dtype.is_complex:
            return self._recv(tensor.view_as_real(), src, tag).view_as_complex()
        what = _what("recv", tensor, f"src={peer}, tag={tag}")
        buffer = Arriving(str(tensor.device), tensor.numel(), tensor.dtype)
        incoming = buffer.incoming
        assert incoming is not None
        wanted = f"{what.dtype}{list(what.shape)}"

        def make(engine: Engine, call: Call) -> Steps:
            letter = np.empty(_LETTER, np.uint8)
            yield engine.direct.receive(letter, peer, tag)
            message = messages.unpack(letter, peer)
            sent, line = (messages.field(message, name, str, peer) for name in ("tensor", "line"))
            if sent != wanted:
                raise CollectiveMismatch(
                    f"rank {engine.wire.rank} calls {what} at {messages.place_of(call.site)};"
                    f" rank {peer} sends {sent} at {line}"
                )
            yield engine.direct.receive(incoming, peer, tag)

        call = self._started(Call(what, user_call_site(), make, peer, buffer))
        return _arriving(buffer, call, tensor, tensor.shape, _Backward(self, _of_recv, (peer, tag)))

    def _moved(
        self, tensor: Tensor, what: What, shape: tuple[int, ...], move: Move, rule: _Backward
    ) -> Tensor:
        """A collective of all ranks, whose result has `shape`, started."""
        own = _bytes_of(tensor)
        buffer = Arriving(str(tensor.device), math.prod(shape), tensor.dtype)
        out = buffer.incoming
        assert out is not None

        def make(engine: Engine, call: Call) -> Steps:
            yield from engine.agree(call)
            yield from move(engine.wire, own, out)

        call = Call(what, user_call_site(), make, None, buffer, nbytes=own.size)
        return _arriving(buffer, self._started(call), tensor, shape, rule)

    def _started(self, call: Call) -> Call:
        assert self._engine is not None, "of one process nothing is sent"
        return self._engine.start(call)

    def _apart(self, stacked: Tensor) -> tuple[Tensor, ...]:
        return tuple(stacked[rank] for rank in range(self.size))

    def _stacked(self, tensors: Tensors, name: str) -> Tensor:
        if not isinstance(tensors, (Tensor, list, tuple)):
            raise InvalidType(
                f"{name} takes a list of tensors, one for each rank, or a tensor whose first axis"
                f" they lie along; got {type(tensors).__name__} {tensors!r}"
            )
        sizes = tensors.shape if isinstance(tensors, Tensor) else (len(tensors),)
        count = sizes[0] if sizes else 0
        if count != self.size:
            raise ShapeError(f"{name} got {count} tensors for {self.size} ranks: give one for each")
        if isinstance(tensors, Tensor):
            return tensors
        first, *rest = (self._checked(tensor, name) for tensor in tensors)
        return first.stack(*rest)

    def _checked(self, tensor: object, name: str) -> Tensor:
        """Raises InvalidType for what is no tensor, Unsupported for one that cannot be sent."""
        refuse(f"{name} between processes")
        if not isinstance(tensor, Tensor):
            raise InvalidType(f"{name} takes a tensor, got {type(tensor).__name__} {tensor!r}")
        if not isinstance(tensor.device, str):
            raise Unsupported(
                f"{name} of {tensor._described()}, on several devices: put it together with"
                f" .to({tensor.device[0]!r})"
            )
        if has_symbols(tensor.shape):
            raise Unsupported(f"{name} of {tensor._described()}: its sizes are symbolic")
        return tensor.cast(tensor.dtype.element) if tensor.dtype.is_image else tensor

    def _known_rank(self, rank: object, name: str) -> int:
        return whole(rank, name, 0, self.size - 1)

    def _other_rank(self, rank: object, name: str) -> int:
        known = self._known_rank(rank, name)
        if known == self.rank:
            raise InvalidValue(f"{name}={known} is this rank itself: name another one")
        return known


def _what(name: str, tensor: Tensor, how: str = "") -> What:
    return What(name, tensor.dtype.name, tuple(map(int, tensor.shape)), how)


def _by_gradient_rules(op: str, dtype: DType) -> bool:
    """Whether ranks exchange everything and join it in the graph, whose gradient follows."""
    return op in _JOINS and has_gradient(dtype)


_JOINS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "product": lambda stacked: stacked.prod(0),
    "min": lambda stacked: stacked.min(0),
    "max": lambda stacked: stacked.max(0),
}


def _joined(stacked: Tensor, op: str) -> Tensor:
    return _JOINS[op](stacked)


def _as_floats(tensor: Tensor) -> Tensor:
    return tensor.view_as_real() if tensor.dtype.is_complex else tensor


def _bytes_of(tensor: Tensor) -> Bytes:
    """The elements, computed; in the tensor's memory where the host can read that."""
    lent = tensor._host_view()
    return as_bytes(tensor._copied_out() if lent is None else lent)


def _arriving(
    buffer: Arriving, call: Call, operand: Tensor, shape: tuple[int, ...], rule: _Backward
) -> Tensor:
    """The tensor whose value a call brings."""
    buffer.comes_with(call)
    if not buffer.size:
        return Tensor._wrap(G.const(0, shape, buffer.dtype, buffer.device))
    return _with_gradient(G.buffer(buffer, shape, buffer.dtype, buffer.device), rule, operand)


def _with_gradient(value: Node, rule: _Backward, operand: Tensor) -> Tensor:
    if not has_gradient(operand.dtype):
        return Tensor._wrap(value)
    node = given(rule, value, (operand._node,))
    if value.kind == "buffer":
        has_value(node, value)
    return Tensor._wrap(node)


# The gradient of an operand, of that of the result: another call, which all ranks make.
Pull = Callable[["Group", Tensor, Node, Any], Tensor]


@dataclass(frozen=True)
class _Backward:
    """The gradient of what a group did.

    Attributes:
        group: that did it.
        pull: gives the gradient, of that of the result, the operand and `how`.
        how: the operation, the rank, or rank and tag.
    """

    group: Group
    pull: Pull
    how: Any = None

    def __call__(self, node: Node, grad: Node) -> tuple[None, Node]:
        """The gradients of a node's value and its operand."""
        return None, self.pull(self.group, Tensor._wrap(grad), node.src[1], self.how)._node


def _of_all_reduce(group: Group, grad: Tensor, _: Node, op: str) -> Tensor:
    return group.all_reduce(grad, op)


def _of_reduce_scatter(group: Group, grad: Tensor, _: Node, op: str) -> Tensor:
    every = group._gathered(grad, "all_gather")
    return every / group.size if op == "avg" else every


def _of_all_gather(group: Group, grad: Tensor, _: Node, __: None) -> Tensor:
    return group.reduce_scatter(grad)


def _of_all_to_all(group: Group, grad: Tensor, _: Node, __: None) -> Tensor:
    return group._exchanged(grad, "all_to_all")


def _of_broadcast(group: Group, grad: Tensor, _: Node, root: int) -> Tensor:
    total = group.all_reduce(grad)
    return total if group.rank == root else total.zeros_like()


def _of_send(group: Group, _: Tensor, operand: Node, how: tuple[int, int]) -> Tensor:
    dst, tag = how
    return group._recv(Tensor._wrap(G.detach(operand)), dst, tag + _OF_GRADIENTS)


def _of_recv(group: Group, grad: Tensor, operand: Node, how: tuple[int, int]) -> Tensor:
    src, tag = how
    group._send(grad, src, tag + _OF_GRADIENTS)
    return Tensor._wrap(G.const(0, operand.shape, operand.dtype, operand.device))
