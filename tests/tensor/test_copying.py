"""Copies of tensors and of what holds them: values of their own, connected as the originals are."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gpu import Device, JitError, Tensor, Var, dtypes, jit
from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.nn.state import get_parameters, get_state_dict, safe_load, safe_save
from tensor.reference import rng_for, torch
from workers import Derived, Model, Named, Trainer

DTYPES = ("bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "fp8e4m3", "float32")
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (4, 1, 9)]


def test_a_copy_outlives_its_original(device: str) -> None:
    a = Tensor([1.0, 2.0])
    b = copy.deepcopy(a)
    del a
    gc.collect()
    others = [Tensor([7.0, 8.0]).realize() for _ in range(4)]
    assert b.tolist() == [1.0, 2.0] and others[0].tolist() == [7.0, 8.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_shapes_and_dtypes(shape: tuple[int, ...], dtype: str) -> None:
    values = rng_for(shape, dtype).integers(0, 2 if dtype == "bool" else 9, shape)
    for lazy in (True, False):
        x = Tensor(values).cast(dtype)
        y = copy.deepcopy(x if lazy else x.realize())
        assert (y.dtype, y.shape, y.device) == (x.dtype, x.shape, x.device)
        assert y.tolist() == x.tolist() and y.requires_grad is None and y.grad is None


def test_writes_to_either_show_in_that_one_alone(device: str) -> None:
    a = Tensor([1.0, 2.0, 3.0]).realize()
    b = copy.deepcopy(a)
    a[0] = 10.0
    b[1] = 20.0
    assert (a.tolist(), b.tolist()) == ([10.0, 2.0, 3.0], [1.0, 20.0, 3.0])
    c = copy.deepcopy(a)
    a.assign(a + 1).realize()
    assert (a.tolist(), c.tolist()) == ([11.0, 3.0, 4.0], [10.0, 2.0, 3.0])


def test_elements_are_copied_on_the_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = Tensor.arange(1000).realize()
    allocator = Device[device].allocator
    copies: list[int] = []
    original = allocator.copy

    def counted(target: Any, source: Any, nbytes: int) -> None:
        copies.append(nbytes)
        original(target, source, nbytes)

    monkeypatch.setattr(allocator, "copy", counted, raising=False)
    b = copy.deepcopy(a)
    assert copies == [a.nbytes()]
    assert b.tolist() == list(range(1000))


def test_leaves_stay_leaves_with_their_gradients(device: str) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    v = copy.deepcopy(w)
    assert v.requires_grad is True and v.grad is not None and v.grad.tolist() == [2.0, 4.0]
    (v * 3).sum().backward()
    assert v.grad.tolist() == [5.0, 7.0]
    assert w.grad is not None and w.grad.tolist() == [2.0, 4.0]
    gradient, leaf = copy.deepcopy([w.grad, w])
    assert leaf.grad is gradient and gradient.tolist() == [2.0, 4.0]
    w.grad, v.grad = None, None
    (w * v).sum().backward()
    assert (w.grad.tolist(), v.grad.tolist()) == ([1.0, 2.0], [1.0, 2.0])  # type: ignore[attr-defined]
    constant = Tensor(5.0, requires_grad=False)
    assert copy.deepcopy(constant).requires_grad is False
    assert copy.copy(constant).requires_grad is False


def test_results_of_leaves_are_refused_as_torch_does() -> None:
    ours, theirs = Tensor([1.0, 2.0], requires_grad=True), torch.ones(2, requires_grad=True)
    for result in (theirs * 2, theirs[1:]):
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(result)
    for mine in (ours * 2, (ours * 2).realize(), ours[1:], [ours.detach(), ours * 1.5]):
        with pytest.raises(RuntimeError, match=r"copy its detach\(\)"):
            copy.deepcopy(mine)
    hidden = ours * 2
    for order in ([hidden, hidden.detach()], [hidden.detach(), hidden]):
        with pytest.raises(InvalidValue, match=r"copy its detach\(\)"):
            copy.deepcopy(order)
    assert copy.deepcopy(hidden.detach()[1:]).tolist() == [4.0]
    assert copy.deepcopy(hidden > 2).tolist() == [False, True]


MOVES: list[Callable[[Any, np.random.Generator], Any]] = [
    lambda x, rng: x[int(rng.integers(x.shape[0])) :],
    lambda x, rng: x[:, : int(rng.integers(1, x.shape[1] + 1))],
    lambda x, rng: x.T,
    lambda x, rng: x.reshape(x.shape),
    lambda x, rng: x.detach(),
]


@pytest.mark.parametrize("seed", range(25))
def test_views_stay_connected_as_in_torch(seed: int) -> None:
    rng = rng_for("views", seed)
    values = rng.standard_normal((4, 6)).astype(np.float32)
    ours, theirs = [Tensor(values)], [torch.tensor(values)]
    for _ in range(6):
        number, move = int(rng.integers(len(ours))), MOVES[int(rng.integers(len(MOVES)))]
        state = rng.bit_generator.state
        ours.append(move(ours[number], rng))
        rng.bit_generator.state = state
        theirs.append(move(theirs[number], rng))
    order = rng.permutation(len(ours))
    ours += copy.deepcopy([ours[i] for i in order])
    theirs += copy.deepcopy([theirs[i] for i in order])
    if seed % 2:  # the copies do not need the originals
        del ours[:7], theirs[:7]
    for step in range(10):
        number = int(rng.integers(len(ours)))
        if theirs[number].numel():
            ours[number][0, 0] = float(step)
            theirs[number][0, 0] = float(step)
        for a, b in zip(ours, theirs, strict=True):
            assert a.tolist() == b.tolist()


def test_a_tensor_that_comes_twice_is_copied_once() -> None:
    a = Tensor([1.0])
    one, two, gone = copy.deepcopy([a, a, None])
    assert one is two and one is not a and gone is None


def test_copy_is_a_view_of_all(device: str) -> None:
    a = Tensor([[1.0, 2.0], [3.0, 4.0]])
    for original in (a, a[1], a.T):
        b = copy.copy(original)
        b[0] = 9.0
        assert original.tolist() == b.tolist()
    assert a.tolist()[0] == [9.0, 9.0]
    w = Tensor([3.0], requires_grad=True)
    copy.copy(w).square().sum().backward()
    assert w.grad is not None and w.grad.tolist() == [6.0]


def test_tensors_on_several_devices() -> None:
    for axis in (None, 0, 1):
        x = Tensor([[1, 2], [3, 4]]).shard(("CPU", "CPU:1"), axis)
        y = copy.deepcopy(x)
        assert (y.device, y.shard_axis) == (x.device, axis)
        x.assign(x * 0).realize()
        assert y.tolist() == [[1, 2], [3, 4]] and x.tolist() == [[0, 0], [0, 0]]
    empty = copy.deepcopy(Tensor.zeros(4, 0).shard(("CPU", "CPU:1"), 0))
    assert empty.shape == (4, 0) and empty.tolist() == [[], [], [], []]


def test_symbolic_sizes(device: str) -> None:
    n = Var("n", 1, 10).bind(3)
    x = Tensor.arange(10)[:n] * 2
    y = copy.deepcopy(x)
    assert y.shape == x.shape == (n,) and y.tolist() == [0, 2, 4]
    assert copy.deepcopy([n, x.size])[0] is n
    position = copy.deepcopy(Var("position", 0, 64, multiple_of=4))
    assert repr(position) == repr(Var("position", 0, 64, multiple_of=4))


def test_images(need: Callable[[str], None]) -> None:
    need("opencl")
    image = dtypes.imagef((8, 16))
    values = rng_for("image").standard_normal((8, 16, 4)).astype(np.float32)
    try:
        x = Tensor(values, device="CL").cast(image).realize()
    except Unsupported as error:
        pytest.skip(error.message)
    y = copy.deepcopy(x)
    x.assign(x * 0).realize()
    assert y.dtype is image and y.tolist() == values.tolist()


def test_memory_of_others(tmp_path: Any) -> None:
    memory = np.arange(64, dtype=np.float32)
    blob = copy.deepcopy(Tensor.from_blob(memory.ctypes.data, (64,), device="CPU"))
    lent = copy.deepcopy(Tensor.from_dlpack(memory, device="CPU"))
    safe_save({"x": Tensor(memory)}, tmp_path / "file")
    mapped = copy.deepcopy(safe_load(tmp_path / "file")["x"])
    memory[:] = -1
    (tmp_path / "file").unlink()
    for x in (blob, lent, mapped):
        assert x.tolist() == list(map(float, range(64)))
        x[0] = 5.0
        assert x[0].item() == 5.0


def test_tracing_refuses_copies() -> None:
    @jit
    def deep(x: Tensor) -> Tensor:
        return copy.deepcopy(x)

    @jit
    def shallow(x: Tensor) -> Tensor:
        return copy.copy(x) + 1

    with pytest.raises(JitError, match="copying a tensor inside a jitted function"):
        deep(Tensor([1.0]))
    assert [shallow(Tensor([float(i)])).tolist() for i in range(4)] == [[1.0], [2.0], [3.0], [4.0]]


def test_classes_derived_from_tensor() -> None:
    x = Named([1.0, 2.0])
    x.label, x.history = "weights", [x]
    for again in (copy.deepcopy, copy.copy):
        y = again(x)
        assert type(y) is Named and y.label == "weights" and y.tolist() == [1.0, 2.0]
        assert (y.history[0] is y) == (again is copy.deepcopy)


def test_a_target_network_keeps_still() -> None:
    trainer = Trainer()
    x = Tensor(rng_for("target").standard_normal((5, 3)).astype(np.float32))
    before = trainer.model(x).tolist()
    target = copy.deepcopy(trainer.model)
    trainer.losses(5)
    assert target(x).tolist() == before != trainer.model(x).tolist()
    target.first.weight.assign(target.first.weight * 0).realize()
    assert trainer.model(x).tolist() != target(x).tolist()


def test_optimisers_refer_to_the_copied_parameters() -> None:
    first = Trainer()
    first.losses(3)
    second = copy.deepcopy(first)
    assert [id(p) for p in second.optimizer.params] == [id(p) for p in second.parameters]
    assert second.parameters[0] is second.model.first.weight is not first.parameters[0]
    state = {name: tensor.tolist() for name, tensor in get_state_dict(second).items()}
    expected = first.losses(3)
    assert {name: tensor.tolist() for name, tensor in get_state_dict(second).items()} == state
    np.testing.assert_allclose(second.losses(3), expected, rtol=1e-5)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy])
def test_jitted_methods_are_those_of_the_copy(again: Callable[[Any], Any]) -> None:
    model = Model()
    x = Tensor([[1.0, 2.0, 3.0]])
    old = [model.predict(x).item() for _ in range(4)][-1]
    other = again(model)
    other.second = copy.deepcopy(model.second)
    other.second.bias = Tensor([100.0])
    for _ in range(4):
        assert other.predict(x).item() > 50 and model.predict(x).item() == pytest.approx(old)
    assert other.predict is other.predict is not model.predict
    one, method = copy.deepcopy([model, model.predict])
    assert method is one.predict and method(x).item() == pytest.approx(old)


def test_jitted_functions() -> None:
    calls = Mock()  # what it is told of each call is no state that a function of ours keeps

    def function(x: Tensor) -> Tensor:
        calls()
        return x + 1

    jitted = jit(function)
    assert [jitted(Tensor([1.0])).item() for _ in range(3)] == [2.0] * 3
    assert copy.deepcopy(jitted) is jitted  # as functions are
    assert copy.copy(jitted).captures == 0 and calls.call_count == 2

    class Holder:
        def __init__(self) -> None:
            self.scale = Tensor([2.0])
            self.direct = jit(self.scaled)
            self.partly = jit(functools.partial(Holder.scaled, self))

        def scaled(self, x: Tensor) -> Tensor:
            """Of a method that is jitted for one object."""
            return x * self.scale

    holder = Holder()
    assert [holder.direct(Tensor([3.0])).item() for _ in range(3)] == [6.0] * 3
    other = copy.deepcopy(holder)
    other.scale.assign(Tensor([5.0]))
    for _ in range(3):
        assert other.direct(Tensor([3.0])).item() == other.partly(Tensor([3.0])).item() == 15.0
        assert holder.direct(Tensor([3.0])).item() == holder.partly(Tensor([3.0])).item() == 6.0


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: x, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_jitted_methods_of_base_classes(again: Callable[[Any], Any]) -> None:
    made = Derived()
    for number in range(8):
        if number == 4:
            made = again(made)
        x = Tensor([number])
        assert made.run(x).item() == (number + 1) * 10
        assert super(Derived, made).run(x).item() == number + 1
        assert (made.plus(x).item(), made.minus(x).item()) == (number + 2, number - 2)


def test_captures_are_no_state() -> None:
    model = Model()
    names = list(get_state_dict(model))
    for _ in range(3):
        model.predict(Tensor([[1.0, 2.0, 3.0]]))
    assert list(get_state_dict(model)) == names
    assert len(get_parameters(jit(model))) == 4


def test_what_belongs_to_the_process_is_its_own_copy() -> None:
    x = Tensor([1.0]).realize()
    for one in (Device, Device["CPU"], Device["CPU"].allocator, x._node, dtypes.float32):
        assert copy.copy(one) is one and copy.deepcopy([one])[0] is one
    image = dtypes.imageh((2, 3))
    assert copy.deepcopy(image) is image
    buffer = x._node.attr[0]
    for again in (copy.copy, copy.deepcopy):
        duplicate = again(buffer)
        assert duplicate is not buffer and duplicate.copy_out().tolist() == [1.0]
    with pytest.raises(InvalidType):
        buffer.__reduce_ex__(4)
