"""Copies of tensors, and tensors in pickles.

`copy.deepcopy` gives what torch's does: a tensor in memory of its own, with the same
`requires_grad` and a copy of `grad`. Tensors and views of them that are copied together stay
connected, as all that is copied with one memo. What was computed from a tensor that asks for
gradients is no leaf and is refused. `copy.copy` is a view of the whole tensor: it shares the
elements.

A pickle holds the value, the device and `requires_grad`, each tensor by itself: views become
tensors of their own, and neither `grad` nor what a value was computed from is in it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidValue
from gpu.runtime.execute import parts_of, storage
from gpu.runtime.users import note_thread
from gpu.tensor.autodiff import reaches
from gpu.tensor.base import TensorBase
from gpu.tensor.handle import Handle, leaf_nodes, live_leaves
from gpu.tensor.tracing import refuse
from gpu.tensor.views import Reshape

if TYPE_CHECKING:
    from typing import Self

Memo = dict[int, Any]


class Copying(TensorBase):
    """What the modules `copy` and `pickle` ask of a tensor."""

    __slots__ = ()

    def __copy__(self) -> Self:
        result = self._viewed(Reshape(self.shape))
        if self._requires_grad is False:
            result.requires_grad = False
        _give_attributes(result, self, None)
        return result

    def __deepcopy__(self, memo: Memo) -> Self:
        refuse("copying a tensor")
        if _is_result(self):
            raise InvalidValue(
                f"{self._described()} was computed from a tensor with requires_grad=True, and only "
                "the latter can be copied deeply: copy its detach()"
            )
        return self._copied(memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        from gpu.tensor.formats.pickled import reduced  # only now: few programs need it

        return reduced(self, protocol)

    def _copied(self, memo: Memo) -> Self:
        """A copy in memory of its own; of a view, a view of a copy of what it shows."""
        note_thread()
        view = self._view
        if view is None or _is_result(view.base):
            copied = self._wrap(own_memory(self._computed()))
        else:
            base = _copy_of(view.base, memo)
            view = view.of(base)
            copied = self._wrap(view.derive())
            copied._view, copied._version = view, base._version
        memo[id(self)] = copied
        copied.requires_grad = self._requires_grad
        if self.grad is not None:
            copied.grad = _copy_of(self.grad, memo)
        _give_attributes(copied, self, memo)
        return copied


def own_memory(node: Node) -> Node:
    """A value in memory, in memory that nothing else stands for; it is copied on its devices."""
    if not node.size:
        return node
    parts = [
        G.buffer(storage(part).duplicate(), part.shape, part.dtype, part.device)
        for part in parts_of(node)
    ]
    if isinstance(node.device, str):
        return parts[0]
    return G.multi(parts, node.attr[0], node.shape, node.device)


def _is_result(handle: Handle) -> bool:
    """Whether gradients of `handle` flow on to a tensor that asks for them; `grad`s are values."""
    if handle._requires_grad or not reaches(handle._node, leaf_nodes()):
        return False
    return all(leaf.grad is not handle for leaf in live_leaves())


def _copy_of(handle: Handle, memo: Memo) -> Any:
    """The copy of a tensor that another one refers to."""
    assert isinstance(handle, Copying)
    found = memo.get(id(handle))
    return handle._copied(memo) if found is None else found


def _give_attributes(target: Handle, source: Handle, memo: Memo | None) -> None:
    """Gives a tensor the attributes of another, which those of subclasses may have; or copies."""
    if own := getattr(source, "__dict__", None):
        vars(target).update(own if memo is None else copy.deepcopy(own, memo))
