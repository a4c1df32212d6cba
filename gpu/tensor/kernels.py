"""`gpu.kernel`: kernels that users write, as nodes of lazy graphs.

A kernel is a Python function that describes it once for all devices, or text in the languages of
some, or both. docs/howto/kernels.md tells users more.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Final

from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.userkernel import LANGUAGES, Array, Source, UserKernel
from gpu.compiler.ir.kernel.author import KernelBuilder
from gpu.compiler.ir.kernel.text import print_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.core.dtype import to_dtype
from gpu.core.errors import (
    DeviceMismatch,
    DTypeError,
    InvalidType,
    InvalidValue,
    ShapeError,
    Unsupported,
)
from gpu.runtime.device import Device
from gpu.runtime.origins import note_origin
from gpu.tensor.arguments import integer
from gpu.tensor.jitobject import found_by_name
from gpu.tensor.tensor import Tensor

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_GIVEN: Final = frozenset({"block_id", "thread_id", "global_id"})

Count = int | Callable[..., int]


def kernel(
    body: Callable[..., None] | Mapping[str, str] | None = None,
    *,
    outputs: Callable[..., Any],
    sources: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    grid: Count = 1,
    block: Count = 1,
    gradient: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """A kernel of your own, to be called with tensors; a decorator where `body` is left out.

    Args:
        body: a function ``body(k, *outputs, *inputs)`` that describes what the kernel computes,
            with loops and memory from `k`; it runs on every device. Or, as `sources`, text alone.
        outputs: a function of the inputs, whose names those of its parameters are. It gives the
            shape and dtype of the result as a pair, which is called ``out``, or, for several
            results, a dict of pairs by their names.
        sources: what a thread does, in languages of devices, which is preferred there: "c"
            (DEV=CPU:CLANG), "opencl", "cuda" (NV and CUDA), "hip" (AMD:HIP), "wgsl" and
            "metal".
        headers: for languages, what stands before the function that is made of the source.
        grid: how many blocks a source is launched in, or a function of the inputs.
        block: how many threads a block has, or a function of the inputs.
        gradient: ``gradient(inputs, outputs, gradients)``, three tuples of tensors, gives the
            gradient of each input, or None for those that have none: a tensor, or a sequence.
        name: what messages and profiles call it; that of the function.

    Raises:
        InvalidType, InvalidValue: an argument that is none of these.

    >>> import gpu
    >>> from gpu import Tensor
    >>> @gpu.kernel(outputs=lambda x: (x.shape, x.dtype))
    ... def double(k, out, x):
    ...     with k.loop(x.size) as i:
    ...         out[i] = 2 * x[i]
    >>> double(Tensor([1.0, 2.0, 3.0])).tolist()
    [2.0, 4.0, 6.0]
    """

    def made(body: Callable[..., None] | None, sources: Mapping[str, str] | None) -> Kernel:
        return Kernel(body, outputs, sources, headers, grid, block, gradient, name)

    if isinstance(body, Mapping):
        return made(None, {**body, **(sources or {})})
    return made(body, sources) if body is not None else lambda body: made(body, sources)


class Kernel:
    """What `kernel` makes. It is pickled as functions are, by its name.

    Attributes:
        body, outputs, sources, headers, grid, block, gradient: as given.
        inputs: the names of the inputs.
    """

    def __init__(
        self,
        body: Callable[..., None] | None,
        outputs: Callable[..., Any],
        sources: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        grid: Count = 1,
        block: Count = 1,
        gradient: Callable[..., Any] | None = None,
        name: str | None = None,
    ):
        """Raises InvalidType and InvalidValue for what `kernel` does not take."""
        for what, function in (("body", body), ("outputs", outputs), ("gradient", gradient)):
            if function is not None and not callable(function):
                raise InvalidType(
                    f"{what} of a kernel is a function, got {type(function).__name__}"
                    f" {function!r}; a kernel of text alone is gpu.kernel({{'c': ...}}, ...)"
                )
        self.body, self.outputs, self.gradient = body, outputs, gradient
        self.sources = _texts(sources, "sources")
        self.headers = _texts(headers, "headers")
        self.grid, self.block = grid, block
        if body is None and not self.sources:
            raise InvalidValue("a kernel is given as a function, in a language, or as both")
        if lone := self.headers.keys() - self.sources.keys():
            raise InvalidValue(
                f"headers of a kernel in {sorted(lone)}, in which there is no source"
            )
        if body is not None:
            update_wrapper(self, body)
        else:
            self.__name__ = self.__qualname__ = "kernel"
        if name is not None:
            self.__name__ = name
        self.inputs = _names_of(outputs)

    def __repr__(self) -> str:
        return f"<gpu.kernel {self.__name__}({', '.join(self.inputs)})>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        if found_by_name(self.__module__, self.__qualname__) is self:
            return self.__qualname__  # pickled by name, as functions are
        arguments = (self.body, self.outputs, self.sources, self.headers, self.grid, self.block)
        return Kernel, (*arguments, self.gradient, self.__name__)

    def __call__(self, *tensors: Tensor) -> Any:
        """The result for these inputs, lazy as others; a tuple of several.

        Raises InvalidType for what are no tensors, or not as many as the inputs, ShapeError for
        empty ones, DeviceMismatch and Unsupported for tensors on several devices or of symbolic
        sizes, what `body` raises, and InvalidValue and VerifyError for what it describes.
        """
        device = self._check(tensors)
        nodes = [G.cast(tensor._node, tensor.dtype.element) for tensor in tensors]
        inputs = tuple(
            Array(name, node.shape, node.dtype)
            for name, node in zip(self.inputs, nodes, strict=True)
        )
        given = self.outputs(*tensors)
        outputs = self._declared(given)
        if all(0 in each.shape for each in outputs):
            made = [Tensor._wrap(G.const(0, e.shape, e.dtype, device)) for e in outputs]
        else:
            definition = self._definition(outputs, inputs, tensors)
            rule = GradientRule(self.__name__, self.gradient)
            node = G.kernel(definition, rule, nodes, device)
            note_origin(node)
            made = [Tensor._wrap(G.result(node, number)) for number in range(len(outputs))]
        return tuple(made) if isinstance(given, dict) else made[0]

    def _check(self, tensors: Sequence[object]) -> str:
        """The device of the inputs."""
        name, wanted = self.__name__, ", ".join(self.inputs)
        if len(tensors) != len(self.inputs):
            raise InvalidType(
                f"the kernel {name} takes {len(self.inputs)} inputs ({wanted}), got {len(tensors)}"
            )
        devices: dict[object, str] = {}
        for own, tensor in zip(self.inputs, tensors, strict=True):
            if not isinstance(tensor, Tensor):
                raise InvalidType(
                    f"the input {own} of the kernel {name} is a tensor, got"
                    f" {type(tensor).__name__} {tensor!r}; make it one, by Tensor(...)"
                )
            if not isinstance(tensor.device, str) or has_symbols(tensor.shape):
                why = "of a symbolic size" if has_symbols(tensor.shape) else "on several devices"
                raise Unsupported(
                    f"the input {own} of the kernel {name} is {tensor._described()}, {why}, which"
                    " kernels of users do not take"
                )
            devices.setdefault(tensor.device, own)
        if len(devices) > 1:
            told = ", ".join(f"{own} is on {device}" for device, own in devices.items())
            raise DeviceMismatch(
                f"the inputs of the kernel {name} are on several devices: {told}; move them to one"
                " with .to(device)"
            )
        return str(next(iter(devices), Device.DEFAULT))

    def _declared(self, given: Any) -> tuple[Array, ...]:
        """The outputs as the user's function gives them."""
        named = given if isinstance(given, dict) else {"out": given}
        if not named:
            raise InvalidValue(f"outputs of the kernel {self.__name__} are none")
        made = []
        for name, form in named.items():
            _check_name(name, "output")
            if name in self.inputs:
                raise InvalidValue(f"{name} is an input and an output of {self.__name__}")
            if not isinstance(form, tuple) or len(form) != 2 or not isinstance(form[0], Sequence):
                raise InvalidType(
                    f"outputs of the kernel {self.__name__} are a pair (shape, dtype), or a dict of"
                    f" such pairs by name; for {name} it gave {form!r}"
                )
            shape = tuple(integer(size, f"a size of {name}") for size in form[0])
            if any(size < 0 for size in shape):
                raise ShapeError(f"{name} of the kernel {self.__name__} has the shape {shape}")
            made.append(Array(name, shape, to_dtype(form[1]).element))
        return tuple(made)

    def _definition(
        self, outputs: tuple[Array, ...], inputs: tuple[Array, ...], tensors: Sequence[Tensor]
    ) -> UserKernel:
        for each in (*outputs, *inputs):
            if 0 in each.shape:
                raise ShapeError(
                    f"{each.name} of the kernel {self.__name__} has the shape {list(each.shape)}:"
                    " kernels take arrays with elements, and run if an output has some"
                )
        sources = tuple(
            Source(language, text, self.headers.get(language, ""))
            for language, text in sorted(self.sources.items())
        )
        launch = []
        for what, count in (("grid", self.grid), ("block", self.block)):
            number = integer(count(*tensors) if callable(count) else count, what)
            if number < 1:
                raise InvalidValue(f"{what}={number} of the kernel {self.__name__}: expected 1 up")
            launch.append(number)
        ir = "" if self.body is None else self._described(outputs, inputs)
        return UserKernel(self.__name__, outputs, inputs, ir, sources, *launch)

    def _described(self, outputs: Sequence[Array], inputs: Sequence[Array]) -> str:
        """What `body` describes, in the text form of the kernel IR."""
        assert self.body is not None
        builder = KernelBuilder(self.__name__)
        arrays = [builder.parameter(*each, read_only=False) for each in outputs]
        arrays += [builder.parameter(*each, read_only=True) for each in inputs]
        try:
            inspect.signature(self.body).bind(builder, *arrays)
        except TypeError as error:
            names = ", ".join(each.name for each in (*outputs, *inputs))
            raise InvalidType(
                f"the function of the kernel {self.__name__} is called as {self.__name__}(k,"
                f" {names}), which it does not take: {error}"
            ) from error
        if (result := self.body(builder, *arrays)) is not None:
            raise InvalidType(
                f"the function of the kernel {self.__name__} returns {result!r}: a kernel writes"
                " to its outputs, and returns nothing"
            )
        made = builder.finish()
        verify_kernel(made)
        return print_kernel(made)


@dataclass(frozen=True)
class GradientRule:
    """The user's gradient of a kernel, for nodes.

    Attributes:
        name: of the kernel.
        function: the user's; None where there is none.
    """

    name: str
    function: Callable[..., Any] | None

    def __call__(self, node: Node, grads: Mapping[int, Node]) -> list[Node | None]:
        """The gradients of the operands of a `kernel` node, for those of its results by number.

        Raises Unsupported where no gradient was given, and InvalidType, ShapeError and DTypeError
        for what it gives.
        """
        if self.function is None:
            raise Unsupported(
                f"the kernel {self.name} has no gradient: give it one with gradient=, or leave it"
                " out of the gradient with .detach()"
            )
        results = [G.result(node, number) for number in range(len(node.attr[0].outputs))]
        zeros = (G.const(0, each.shape, each.dtype, each.device) for each in results)
        flowing = [grads.get(number, zero) for number, zero in enumerate(zeros)]
        arguments = (tuple(map(Tensor._wrap, nodes)) for nodes in (node.src, results, flowing))
        found = self.function(*arguments)
        parts = found if isinstance(found, (tuple, list)) else (found,)
        if len(parts) != len(node.src):
            raise InvalidType(
                f"the gradient of the kernel {self.name} gives {len(parts)}, and it has"
                f" {len(node.src)} inputs: one for each, None where there is none"
            )
        return [self._checked(*each) for each in zip(parts, node.src, strict=True)]

    def _checked(self, part: object, source: Node) -> Node | None:
        if part is None or not has_gradient(source.dtype):
            return None
        if not isinstance(part, Tensor):
            raise InvalidType(
                f"the gradient of the kernel {self.name} gives {type(part).__name__} {part!r}:"
                " expected a tensor for each input, or None"
            )
        if part.shape != source.shape:
            raise ShapeError(
                f"the gradient of the kernel {self.name} gives {list(part.shape)} for an input of"
                f" the shape {list(source.shape)}"
            )
        if part.dtype is not source.dtype:
            raise DTypeError(
                f"the gradient of the kernel {self.name} gives {part.dtype.name} for an input of"
                f" {source.dtype.name}: cast() it"
            )
        return part._node


def _texts(texts: Mapping[str, str] | None, what: str) -> dict[str, str]:
    for language, text in (texts or {}).items():
        if language not in LANGUAGES:
            raise InvalidValue(
                f"{what} of a kernel in {language!r}: known are {', '.join(LANGUAGES)}"
            )
        if not isinstance(text, str):
            raise InvalidType(f"{what} of a kernel are text, got {text!r} for {language}")
    return dict(texts or {})


def _names_of(outputs: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the inputs, as a function of them has them."""
    parameters = inspect.signature(outputs).parameters.values()
    for each in parameters:
        if each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            raise InvalidType(
                f"outputs of a kernel is a function of its inputs, of which {each} is none: their"
                " names are written out, as in lambda x, y: (x.shape, x.dtype)"
            )
        _check_name(each.name, "input")
    return tuple(each.name for each in parameters)


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _GIVEN:
        raise InvalidValue(
            f"{name!r} is no name of an {what} of a kernel: expected letters, digits and _, from a"
            f" letter on, and none of {', '.join(sorted(_GIVEN))}"
        )
