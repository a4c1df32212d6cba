"""Gradients of a tensor: given back, or added to the leaves it was computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import layout_of
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError
from gpu.runtime.execute import on_devices
from gpu.tensor.autodiff import gradients, reached
from gpu.tensor.handle import Handle, live_leaves
from gpu.tensor.leafnodes import LEAF_NODES
from gpu.tensor.nograd import NoGrad
from gpu.tensor.tracing import JitError

if TYPE_CHECKING:
    from typing import Self


class Gradients(Handle):
    """The two ways to the gradients of a tensor."""

    __slots__ = ()

    def gradient(
        self,
        *targets: Handle,
        gradient: Handle | None = None,
        materialize_grads: bool = False,
    ) -> list[Self]:
        """The gradients of this tensor with respect to each of `targets`.

        They are tensors like any other, and have gradients themselves.

        Args:
            targets: tensors this one was computed from.
            gradient: gradient of this tensor, of its shape; without it the tensor has to be 0-d.
            materialize_grads: gives zeros for a target on which this tensor does not depend.

        Raises:
            ShapeError: the tensor is not 0-d and no gradient was given.
            InvalidValue: this tensor does not depend on a target through differentiable operations,
                and `materialize_grads` is False.

        >>> from gpu import Tensor
        >>> x = Tensor(3.0, requires_grad=True)
        >>> (slope,) = (x * x * x).gradient(x)
        >>> slope.item(), slope.gradient(x)[0].item()
        (27.0, 18.0)
        """
        for target in targets:
            check_tensor(target, "a target")
        found = self._gradients([t._nodes() for t in targets], gradient)
        grads: list[Self] = []
        for target, node in zip(targets, found, strict=True):
            if node is not None:
                grads.append(self._wrap(node))
            elif materialize_grads:
                zero = G.const(0, target.shape, target.dtype, target.device)
                grads.append(self._wrap(zero))
            else:
                folded = target._value.kind == "const"
                raise InvalidValue(
                    f"{self._described()} does not depend on {target._described()}: there is no "
                    "gradient; "
                    + ("constants fold, unless made with requires_grad=True; " if folded else "")
                    + "materialize_grads=True gives zeros for it"
                )
        return grads

    @staticmethod
    def no_grad() -> NoGrad:
        """``with Tensor.no_grad():`` computes only to read: no gradient flows back through it.

        What is made inside keeps nothing that only a gradient would need, so that a loop over
        states or caches needs no more memory from step to step. Tensors with `requires_grad` may
        be written to inside, as ``w -= rate * w.grad``, and stay leaves. Also a decorator.

        >>> from gpu import Tensor
        >>> w = Tensor([1.0, 2.0], requires_grad=True)
        >>> _ = (w * w).sum().backward()
        >>> with Tensor.no_grad():
        ...     w -= 0.25 * w.grad
        >>> w.tolist(), w.requires_grad
        ([0.5, 1.0], True)
        """
        return NoGrad()

    def backward(self, gradient: Handle | None = None) -> Self:
        """Adds the gradient of this tensor to `grad` of every tensor that asks for one.

        Those are the tensors with `requires_grad=True` that this one was computed from. Raises
        ShapeError if the tensor is not 0-d and no gradient is given, InvalidValue if there is no
        such tensor.
        """
        order = toposort([self._node])
        inside = set(order)
        leaves = [t for t in live_leaves() if not inside.isdisjoint(t._nodes())]
        found = self._gradients([t._nodes() for t in leaves], gradient, order)
        if all(node is None for node in found):
            raise InvalidValue(
                f"{self._described()} was computed from no tensor with requires_grad=True, or "
                "only through detach(), no_grad(), jitted functions that train, and operations "
                "that have no gradient: set "
                "requires_grad=True on what gradients are wanted of (parameters of nn's layers "
                "have it) before it is used, and give it new values by assign(), since w = w - "
                "step makes another tensor; or ask for gradient(w), which needs no flag"
            )
        for leaf, node in zip(leaves, found, strict=True):
            if node is not None:
                own = _laid_as(leaf, node)
                total = own if leaf.grad is None else G.alu("add", leaf.grad._node, own)
                leaf.grad = leaf._wrap(total)
        return self

    def _refuse_ends(self, targets: Sequence[Node]) -> None:
        """Raises JitError where a gradient should go through the result of a replay."""
        if not (ends := LEAF_NODES.replayed()):
            return
        for node in reached(self._node, {*targets, *ends}):
            if node in ends and node not in targets:
                raise JitError(
                    f"{self._described()} was computed by way of the jitted {ends[node]}, and "
                    "gradients do not go through a replay: call backward() or gradient() inside "
                    f"{ends[node]}, or detach() its result if no gradient is wanted there"
                )

    def _gradients(
        self,
        targets: Sequence[tuple[Node, ...]],
        gradient: Handle | None,
        order: Sequence[Node] | None = None,
    ) -> list[Node | None]:
        if not has_gradient(self.dtype):
            raise DTypeError(f"only float tensors have gradients, this one is {self.dtype.name}")
        if gradient is not None:
            check_tensor(gradient, "gradient")
        if gradient is None:
            if self.shape:
                raise ShapeError(
                    f"the gradient of a tensor of shape {list(self.shape)} needs gradient=, "
                    "a tensor of that shape; only a 0-d tensor starts from 1"
                )
            if self.dtype.is_complex:
                raise DTypeError(
                    "a complex tensor has no gradient of its own: pass gradient=, or take .abs(),"
                    " .real or another real function of it"
                )
            seed = G.const(1.0, (), self.dtype, self.device)
        elif gradient.shape != self.shape:
            raise ShapeError(
                f"gradient has shape {list(gradient.shape)}, the tensor {list(self.shape)}"
            )
        else:
            seed = G.cast(gradient._node, self.dtype.element)
        flat = [node for nodes in targets for node in nodes]
        self._refuse_ends(flat)
        found = dict(zip(flat, gradients(self._node, seed, flat, order), strict=True))
        return [_sum([found[n] for n in nodes]) for nodes in targets]


def check_tensor(value: object, name: str) -> None:
    """Raises InvalidType for what is no tensor; `name` says what it is in the call."""
    if not isinstance(value, Handle):
        raise InvalidType(f"{name} must be a tensor, got {type(value).__name__} {value!r}")


def _sum(parts: Sequence[Node | None]) -> Node | None:
    total: Node | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else G.alu("add", total, part)
    return total


def _laid_as(leaf: Handle, grad: Node) -> Node:
    """The gradient, cut as its leaf is: each device gets the sum of its part alone."""
    if isinstance(grad.device, str):
        return grad
    (spread,) = on_devices([leaf._node])
    if not spread.cut_axes:
        return grad
    return G.copy(grad, grad.device, layout_of(grad.device, spread.layout))
