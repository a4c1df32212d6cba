"""What a tensor is underneath: a handle on a graph node, which writing moves to another one.

Nodes are immutable values, so program order needs no bookkeeping of readers and writers: what was
computed from a tensor refers to the node the tensor stood for then. Only views look at the tensor
itself: each knows which version of its base it has seen, and derives its value anew from a later
one (`gpu/tensor/views.py`).
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, ClassVar, Final
from weakref import ref

from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.graph import Node, Shape, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import layout_of
from gpu.compiler.ir.graph.node import Place, place
from gpu.core.dtype import DType
from gpu.core.errors import DTypeError, InvalidValue
from gpu.runtime.execute import again, is_computed, on_devices, realize
from gpu.runtime.origins import note_origin
from gpu.tensor.autodiff import reaches
from gpu.tensor.leafnodes import LEAF_NODES
from gpu.tensor.nograd import unrecorded
from gpu.tensor.tracing import active
from gpu.tensor.views import Detach, Step, View

if TYPE_CHECKING:
    from typing import Self

_identities = itertools.count(1)


class Handle:
    """The node a tensor stands for, what it is a view of, and whether gradients end here."""

    __slots__ = (
        "__weakref__",
        "_earlier",
        "_grad",
        "_requires_grad",
        "_value",
        "_version",
        "_view",
    )

    # Tensors that `backward` fills the gradient of, by identity: `==` compares elements.
    _leaves: ClassVar[weakref.WeakValueDictionary[int, Handle]] = weakref.WeakValueDictionary()
    # Tensors that were written to, until what was written is in memory, by identity.
    _unsettled: ClassVar[weakref.WeakValueDictionary[int, Handle]] = weakref.WeakValueDictionary()

    def _hold(self, node: Node) -> None:
        """Starts to stand for `node`, as a tensor that is no view."""
        self._value = node
        note_origin(node)
        self._view: View | None = None
        # How often a base was written to; of a view, how often its base was when it last looked.
        self._version = 0
        self._requires_grad: bool | None = None
        self._earlier: tuple[ref[Node], ...] = ()
        self._grad: Self | None = None
        if (born := unrecorded()) is not None:
            born[id(self)] = self
        if (trace := active()) is not None:
            trace.born[id(self)] = self

    @classmethod
    def _wrap(cls, node: Node) -> Self:
        """A tensor of `node`, a view of nothing."""
        tensor = cls.__new__(cls)
        tensor._hold(node)
        return tensor

    def _viewed(self, step: Step) -> Self:
        """What `step` shows of this tensor, as a view of it."""
        tensor = self._wrap(step.apply(self._node))
        view = View(self, step) if self._view is None else self._view.then(step)
        tensor._view, tensor._version = view, view.base._version
        return tensor

    def _same(self) -> Self:
        """Another tensor of the value this one has now."""
        return self._wrap(self._node)

    @property
    def _node(self) -> Node:
        """The value the tensor has now."""
        if self._requires_grad and _written.leaves:
            base = self if self._view is None else self._view.base
            if id(base) in _written.leaves:
                _settle_leaves()
        if (trace := active()) is not None:
            trace.uses(self)
        if self._view is not None:
            self._catch_up()
        return self._value

    @property
    def shape(self) -> Shape:
        """Sizes of the dimensions."""
        return self._value.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._value.dtype

    @property
    def device(self) -> Place:
        """Name of the device the value lives on, as in ``CPU`` or ``CPU:1``.

        Of a tensor that is sharded, a tuple of the names of its devices.
        """
        return self._value.device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._value.shape)

    def _described(self) -> str:
        """The tensor in words, for errors: nothing is computed."""
        return f"a tensor of shape {list(self.shape)}, {self.dtype.name} on {place(self.device)}"

    # Writes.

    def _set(self, node: Node) -> None:
        """Changes the elements to those of `node`, of the same shape and dtype.

        What an image holds is again written to one, and what is cut over devices is cut alike.
        A view writes through to its base, and all views of that base follow. Raises InvalidValue
        for a view that shows an element more than once.
        """
        base, new = self, node
        if self._view is not None:
            base, new = self._view.base, self._view.write(node)
        new = G.cast(new, base.dtype)
        base._move(new if isinstance(base.device, str) else _laid_out_as(base._value, new))

    def _move(self, node: Node) -> None:
        """Takes the value of `node`: the step of a base from one version to the next."""
        if self._requires_grad:
            # Still a leaf: gradients end at the new value, not where that came from.
            node = _node_of_its_own(G.detach(node))
            LEAF_NODES.note(node, self)
        elif unrecorded() is not None:
            node = G.detach(node)
        self._note_write()
        self._value, self._earlier = node, ()
        self._version += 1
        if active() is not None:
            _written.leaves.pop(id(self), None)
            return
        Handle._unsettled[id(self)] = self
        if self._requires_grad:
            _written.leaves[id(self)] = self

    def _catch_up(self) -> None:
        """A view that was written through lets go of the value it showed before.

        Its memory may then be written in place.
        """
        view = self._view
        if view is not None and self._version != view.base._version:
            self._value, self._version = view.derive(), view.base._version

    def _note_write(self) -> None:
        if (trace := active()) is not None:
            trace.writes(self)

    def _become(self, node: Node, leaf_nodes: Container[Node]) -> None:
        """Stands for `node` from now on, which has the value the tensor has already.

        Where gradients could flow on to a leaf, one of `leaf_nodes`, the tensor keeps the node it
        has: the runtime knows its value is in memory, and `backward` needs what lies behind it.
        """
        if node is self._value:
            return
        if self._requires_grad:
            self._earlier = (*self._earlier, ref(self._value))
            LEAF_NODES.note(node, self)
        elif self._has_history(leaf_nodes):
            return
        self._value = node

    def _has_history(self, leaf_nodes: Container[Node]) -> bool:
        """Whether `backward` may need what lies behind the value."""
        if not leaf_nodes or ((born := unrecorded()) is not None and id(self) in born):
            return False
        return reaches(self._value, leaf_nodes)

    def _cut_off(self) -> None:
        """Lets no gradient flow past the value it has now; a leaf stays what it is."""
        if self._requires_grad or not has_gradient(self.dtype):
            return
        if self._value.kind not in ("buffer", "multi"):
            self._value = G.detach(self._value)
            if self._view is not None:
                self._view = self._view.then(Detach())

    def _replace(self, node: Node) -> None:
        """Takes another value: `node`, in memory that no other tensor of interest stands for.

        What was computed from this tensor before keeps its value, and no gradient of it comes here
        any more. `node` has to be computed, so that a tensor that asks for gradients is a leaf.
        """
        if self._view is not None:
            self._set(node)
        else:
            self._note_write()
            if self._requires_grad:
                LEAF_NODES.note(node, self)
            self._value, self._earlier = node, ()
            self._version += 1

    def _refuse_leaf(self) -> None:
        """Raises InvalidValue where a write would change a tensor that asks for gradients.

        Not so in a block of `no_grad`, where a leaf takes the new value and stays one.
        """
        view = self._view
        base = self if view is None else view.base
        detached = view is not None and view.detached
        if base._requires_grad and not detached and unrecorded() is None:
            raise InvalidValue(
                f"{base._described()} has requires_grad=True and cannot be written to in place, "
                "since no gradient would flow through that: to take a step, write "
                "`with Tensor.no_grad():` around it, or w.assign(w - rate * w.grad)"
            )

    # Leaves.

    @property
    def grad(self) -> Self | None:
        """What `backward` has added up here; None before that, and where it was set to None."""
        if (trace := active()) is not None:
            trace.reads_gradient(self)
        return self._grad

    @grad.setter
    def grad(self, value: Self | None) -> None:
        if (trace := active()) is not None:
            trace.writes_gradient(self)
        self._grad = value

    @property
    def requires_grad(self) -> bool | None:
        """Whether `backward` stores the gradient here; None where it was never said.

        A view that is told so becomes a tensor of its own.
        """
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool | None) -> None:
        if not value:
            self._requires_grad = value
            Handle._leaves.pop(id(self), None)
            return
        if not has_gradient(self.dtype):
            raise DTypeError(f"only float tensors have gradients, this one is {self.dtype.name}")
        if self.dtype.is_image:
            raise DTypeError(f"{self._described()} cannot be a leaf; make one of its .float()")
        self._requires_grad = value
        if id(self) in Handle._leaves:
            return
        node = self._node
        if node.kind != "buffer" or any(node is leaf._value for leaf in live_leaves()):
            # Equal expressions are one node; a leaf must be told from others of its value.
            node = _node_of_its_own(node)
        self._value, self._view = node, None
        Handle._leaves[id(self)] = self
        LEAF_NODES.note(node, self)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Sets `requires_grad` and returns the tensor: False freezes a parameter, as in torch.

        >>> from gpu import nn
        >>> nn.Linear(2, 1).weight.requires_grad_(False).requires_grad
        False
        """
        self.requires_grad = requires_grad
        return self

    def _has_gradient(self) -> bool:
        """Whether it is a leaf, or was computed from one in a way that a gradient can go."""
        if self._requires_grad:
            return True
        value = self._value
        return reaches(value, LEAF_NODES) if value.src else value in LEAF_NODES

    def _nodes(self) -> tuple[Node, ...]:
        """Every node this tensor's value has been known as, of those that are in use."""
        earlier = [node for known in self._earlier if (node := known()) is not None]
        return (self._to_compute, *earlier)

    @property
    def _to_compute(self) -> Node:
        """The value the tensor has now: as `_node`, but nothing is computed for it."""
        return self._value if self._requires_grad else self._node


def releases(handles: Sequence[Handle]) -> list[Node]:
    """The nodes that tensors let go of when they are computed; see `Handle._become`."""
    leaves = leaf_nodes()
    return [
        handle._value
        for handle in handles
        if not handle._requires_grad and not handle._has_history(leaves)
    ]


def written_before(nodes: Sequence[Node]) -> list[Handle]:
    """The tensors whose last write has to be done before `nodes` are computed.

    Their values are computed with `nodes`: so a write happens once, in place where it can, and what
    is computed after each of many writes does not begin with the first.
    """
    if not Handle._unsettled:
        return []
    needed = set(toposort(nodes, is_computed)).difference(nodes)
    found = []
    for identity, handle in list(Handle._unsettled.items()):
        if is_computed(handle._value):
            Handle._unsettled.pop(identity, None)
        elif handle._value in needed:
            found.append(handle)
    return found


class _Written(threading.local):
    """Leaves that this thread wrote to and has not read since, by identity."""

    def __init__(self) -> None:
        self.leaves: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()


_written: Final = _Written()


def _settle_leaves() -> None:
    """Computes what leaves were written, together, before anything is built on one of them.

    What is built on values in memory does not hold what these came from. So a loop that takes steps
    by hand, in which all leaves have new values before one of them is read, computes them with
    their gradients once, and each step begins with the last.
    """
    leaves = list(_written.leaves.values())
    _written.leaves.clear()
    waiting = [leaf for leaf in leaves if leaf._requires_grad and not is_computed(leaf._value)]
    if waiting:
        compute(waiting)


def compute(tensors: Sequence[Handle]) -> list[Node]:
    """Computes the values of `tensors`, and what was written to others on the way to them."""
    if len(tensors) == 1 and not Handle._unsettled:
        (tensor,) = tensors
        value = again(tensor._to_compute)
        if value is not None:
            tensor._become(value, LEAF_NODES)
            return [value]
    everything, nodes = tensors, [t._to_compute for t in tensors]
    if written := written_before(nodes):
        everything = (*tensors, *written)
        nodes += [t._to_compute for t in written]
    computed = realize(nodes, lambda: releases(everything))
    leaves = leaf_nodes()
    for tensor, node in zip(everything, computed, strict=True):
        tensor._become(node, leaves)
    return computed


def _laid_out_as(old: Node, new: Node) -> Node:
    """A value on several devices as another one lies there."""
    (spread,) = on_devices([old])
    return G.copy(new, old.device, layout_of(old.device, spread.layout))


def _node_of_its_own(node: Node) -> Node:
    return G.contiguous(node, next(_identities))


def leaf_nodes() -> Container[Node]:
    """Every node at which gradients end: values that leaves have or had, and results of replays."""
    return LEAF_NODES


def live_leaves() -> list[Handle]:
    """The tensors that ask for gradients."""
    # There may be many, and this is asked for each value that is computed: `values()` is slow.
    references = Handle._leaves.valuerefs()
    return [leaf for reference in references if (leaf := reference()) is not None]
