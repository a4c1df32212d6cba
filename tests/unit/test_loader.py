"""Batches of a loader: their order, shapes and weights; going on; what is refused."""

from __future__ import annotations

import threading
from itertools import chain
from typing import Any

import numpy as np
import pytest

from gpu import Mesh, Tensor
from gpu.core.errors import InvalidType, InvalidValue, ShapeError
from gpu.data import Loader


def numbers(loader: Loader) -> list[list[float]]:
    """The samples of one epoch that have a weight, batch by batch."""
    return [x.numpy()[weights.numpy() > 0].tolist() for x, weights in loader]


@pytest.mark.parametrize("seed", range(6))
def test_an_epoch_has_every_sample_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, size = int(rng.integers(1, 40)), int(rng.integers(1, 12))
    loader = Loader(np.arange(count), size, seed=seed, prefetch=int(rng.integers(0, 9)))
    epochs = [numbers(loader) for _ in range(3)]
    for epoch in epochs:
        assert len(epoch) == len(loader) == -(-count // size)
        assert sorted([*chain(*epoch)]) == list(range(count))
        assert all(len(batch) == size for batch in epoch[:-1])
    assert count < 6 or epochs[0] != epochs[1] != epochs[2]
    assert epochs == [numbers(again) for again in [Loader(np.arange(count), size, seed=seed)] * 3]
    assert (loader.epoch, loader.batch) == (3, 0)
    plain = Loader(np.arange(count), size, shuffle=False)
    assert [*chain(*numbers(plain))] == list(range(count))


def test_the_order_is_fixed() -> None:
    """Of a seed for good: checkpoints go on in it with other versions."""
    assert [*chain(*numbers(Loader(np.arange(10), 4, seed=5)))] == [9, 2, 4, 3, 1, 5, 0, 6, 7, 8]


def test_weights_make_means_of_what_is_not_padded() -> None:
    rng = np.random.default_rng(1)
    losses = rng.normal(size=11)
    found = []
    for x, weights in Loader(losses, 4, seed=2):
        assert x.shape == weights.shape == (4,) and weights.dtype.name == "float32"
        real = x.numpy()[weights.numpy() > 0]
        np.testing.assert_allclose((x * weights).sum().item(), real.mean(), rtol=1e-6)
        found.append(real.size)
    assert found == [4, 4, 3]


def test_forms_of_samples() -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6, dtype=np.int16)
    wanted = x[:4].tolist()
    (first, labels), _ = next(iter(Loader((x, y), 4, shuffle=False)))
    assert first.tolist() == wanted and labels.dtype.name == "int16"
    named, _ = next(iter(Loader({"x": x, "y": y}, 4, shuffle=False)))
    assert named["x"].tolist() == wanted and [*named] == ["x", "y"]
    single, _ = next(iter(Loader([*x], 4, shuffle=False)))
    assert single.tolist() == wanted
    pairs, _ = next(iter(Loader([*zip(x, y, strict=True)], 4, shuffle=False)))
    assert pairs[0].tolist() == wanted and pairs[1].tolist() == [0, 1, 2, 3]
    dicts, _ = next(iter(Loader([{"x": row} for row in x], 4, shuffle=False)))
    assert dicts["x"].tolist() == wanted


def test_batches_on_a_mesh() -> None:
    mesh = Mesh((2, 2), ("data", "model"))
    x = np.arange(10.0)
    for value, weights in Loader(x, 4, mesh=mesh, shuffle=False):
        assert value.spec == weights.spec == ("data",)
        assert [part.shape for part in value.local()] == [(2,)] * 4
    assert value.tolist() == [8, 9, 0, 0] and weights.tolist() == [0.5, 0.5, 0, 0]
    value, _ = next(iter(Loader(x, 4, mesh=mesh, spec=(("data", "model"),), shuffle=False)))
    assert [part.tolist() for part in value.local()] == [[0], [1], [2], [3]]
    value, weights = next(iter(Loader(x, 3, mesh=mesh, shuffle=False)))
    assert [part.tolist() for part in value.local()] == [[0, 1], [0, 1], [2, 0], [2, 0]]
    np.testing.assert_allclose(weights.numpy(), [1 / 3] * 3 + [0], rtol=1e-6)
    value, _ = next(iter(Loader(x, 3, mesh=mesh, spec=(), shuffle=False)))
    assert [part.tolist() for part in value.local()] == [[0, 1, 2]] * 4


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_it_goes_on_from_a_state(stop: int) -> None:
    def loader() -> Loader:
        return Loader(np.arange(15), 4, seed=9)

    whole = loader()
    expected = numbers(whole) + numbers(whole)
    first = loader()
    found = []
    for x, weights in first:
        found.append(x.numpy()[weights.numpy() > 0].tolist())
        if len(found) == stop:
            break
    second = loader()
    second.load_state_dict(first.state_dict())
    while len(found) < len(expected):
        found += numbers(second)
    assert found == expected


def test_batches_are_taken_one_by_one() -> None:
    expected = Loader(np.arange(9), 2, seed=3)
    wanted = [x.tolist() for _ in range(3) for x, _ in expected]
    loader = Loader(np.arange(9), 2, seed=3)
    found = [loader.take()[0].tolist() for _ in range(7)]
    state = loader.state_dict()
    found += [loader.take()[0].tolist() for _ in range(8)]
    assert found == wanted
    loader.load_state_dict(state)
    assert [loader.take()[0].tolist() for _ in range(8)] == wanted[7:]
    loader.close()


def test_samples_are_read_ahead_by_threads() -> None:
    read: list[int] = []
    names = set[str]()

    class Samples:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, number: int) -> float:
            read.append(number)
            names.add(threading.current_thread().name)
            return float(number)

    made = Loader(Samples(), 2, prefetch=3, shuffle=False, workers=1)
    assert read == [0]  # of what kind they are
    given = iter(made)
    next(given)
    given.close()
    assert len(read) <= 1 + 2 * 4
    assert all(name.startswith("gpu-loader") for name in names - {"MainThread"})


def test_bad_input() -> None:
    x = np.arange(6.0)
    for samples, kind, text in [
        (np.zeros((0, 3)), InvalidValue, "no samples"),
        ([], InvalidValue, "no samples"),
        ((x, x[1:]), ShapeError, r"\[6\], \[5\]"),
        (iter(x), InvalidType, "list"),
    ]:
        with pytest.raises(kind, match=text):
            Loader(samples, 2)
    for wrong in ({"batch_size": 0}, {"workers": 0}, {"prefetch": -1}, {"seed": -1}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            Loader(x, **{"batch_size": 2, **wrong})
    mesh = Mesh((2,), ("data",))
    with pytest.raises(InvalidValue, match="none of the axes"):
        Loader(x, 2, mesh=mesh, spec=("batch",))
    with pytest.raises(InvalidValue, match="give one"):
        Loader(x, 2, mesh=mesh, device="CPU")
    with pytest.raises(ShapeError, match=r"sample 1 is float64\[2\], sample 0 float64\[1\]"):
        numbers(Loader([np.ones(1), np.ones(2)], 2, shuffle=False))
    with pytest.raises(InvalidType, match="sample 1 has the values"):
        numbers(Loader([(1.0, 2), (1.0,)], 2, shuffle=False))


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"samples": 7}, {"batch_size": 3}, {"batch": 9}, {"epoch": -1}, {"batch": "1"}],
)
def test_states_of_others_are_refused(change: dict[str, Any]) -> None:
    loader = Loader(np.arange(6), 2)
    with pytest.raises(InvalidValue):
        loader.load_state_dict(loader.state_dict() | change)
    with pytest.raises(InvalidValue, match="no state"):
        loader.load_state_dict({})


def test_errors_of_reading_come_out() -> None:
    class Samples:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, number: int) -> float:
            if number == 5:
                raise OSError("the disk is gone")
            return 0.0

    given = iter(Loader(Samples(), 2, shuffle=False, prefetch=0))
    next(given)
    next(given)
    with pytest.raises(OSError, match="disk is gone"):
        next(given)
    assert Tensor([1.0]).item() == 1.0


def test_a_loop_does_not_go_on_elsewhere() -> None:
    loader = Loader(np.arange(9), 2)
    state = loader.state_dict()
    given = iter(loader)
    next(given)
    loader.load_state_dict(state)
    with pytest.raises(InvalidValue, match="another place"):
        next(given)
    assert len([*loader]) == 5
