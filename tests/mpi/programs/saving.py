"""What every rank runs of checkpoints: ``saving.py SEED FOLDER [NAME...]``, all ``check_...``.

All ranks draw the same numbers. Each prints a line of JSON, as `checks.py`. In FOLDER are
checkpoints of one process, ``alone``, and come those of the ranks, ``ranks``.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpu import Mesh, Tensor, distributed, jit
from gpu.core.errors import (
    CollectiveMismatch,
    DistributedError,
    FormatError,
    InvalidValue,
)
from gpu.data import Loader
from gpu.nn.optim import AdamW
from mpi.checking import raises, run_checks
from mpi.states import STATE, filled, same, shapes

group = distributed.init()
RANK, SIZE = group.rank, group.size
rng = np.random.default_rng(int(sys.argv[1]))
FOLDER = Path(sys.argv[2])


def laid(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each on a mesh and in a way that are drawn, or on none."""
    meshes = [Mesh((SIZE,), ("a",)), Mesh((SIZE, 2), ("a", "b")), Mesh((2 * SIZE,), ("a",))]
    found = {}
    for name, value in values.items():
        mesh = meshes[rng.integers(3)]
        specs: list[Any] = [None, ()]
        for axis, size in enumerate(value.shape):
            for names in [("a",), ("b",), ("a", "b")]:
                known = [
                    mesh.shape[mesh.axis_names.index(n)] for n in names if n in mesh.axis_names
                ]
                if len(known) == len(names) and not size % int(np.prod(known)):
                    specs.append((*(None,) * axis, names))
        spec = specs[rng.integers(len(specs))]
        found[name] = value if spec is None else value.shard(mesh, spec).contiguous()
    return found


def check_layouts() -> None:
    """What was saved lying in one way is loaded lying in another; later writes do not matter."""
    for step in range(3):
        state = laid(filled(rng, SIZE))
        wanted = {name: tensor.numpy().copy() for name, tensor in state.items()}
        saving = distributed.save(FOLDER / "layouts", state, step)
        for tensor in state.values():
            tensor.assign(tensor.zeros_like()).realize()
        if step:
            saving.wait()
        other = laid(shapes(SIZE))
        specs = {name: tensor.spec for name, tensor in other.items()}
        assert distributed.load(FOLDER / "layouts", other) == step
        same(other, wanted)
        assert {name: tensor.spec for name, tensor in other.items()} == specs
    assert len(distributed.checkpoints(FOLDER / "layouts")) == 2


def check_other_numbers_of_ranks() -> None:
    drawn = np.random.default_rng(STATE)
    state = laid(shapes(4))
    assert distributed.load(FOLDER / "alone", state) == 41
    same(state, {name: tensor.numpy() for name, tensor in filled(drawn, 4).items()})
    distributed.save(FOLDER / "ranks", state, 42).wait()


def check_training_goes_on() -> None:
    """Steps after a load are those that would have come; the graphs that were captured go on."""
    mesh, draws = Mesh((SIZE,), ("data",)), np.random.default_rng(5)
    weight = Tensor(draws.normal(size=(8, 4 * SIZE)))
    x = Tensor(draws.normal(size=(4 * SIZE, 8))).shard(mesh, ("data",))

    def started(spec: tuple[Any, ...]) -> tuple[dict[str, Any], Callable[[], Tensor]]:
        param = weight.shard(mesh, spec).contiguous().realize()
        optimizer = AdamW([param], lr=0.1)

        @jit
        def step() -> Tensor:
            optimizer.zero_grad()
            loss = (x @ param).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return {"weight": param, "optimizer": optimizer}, step

    with Tensor.train():
        state, step = started(())
        first = [step().item() for _ in range(4)]
        distributed.save(FOLDER / "training", state, 4)
        then = [step().item() for _ in range(3)]
        assert distributed.load(FOLDER / "training", state) == 4
        assert [step().item() for _ in range(3)] == then
        other, again = started((None, "data"))
        np.testing.assert_allclose([again().item() for _ in range(4)], first, rtol=1e-12)
        distributed.load(FOLDER / "training", other)
        np.testing.assert_allclose([again().item() for _ in range(3)], then, rtol=1e-12)


def check_bad_input() -> None:
    place, state = FOLDER / "bad", {"x": Tensor(rng.normal(size=(2 * SIZE, 3))).contiguous()}
    mesh = Mesh((SIZE,), ("data",))
    state["x"].shard_(mesh, ("data",))
    raises(InvalidValue if not RANK else DistributedError, lambda: distributed.load(place, state))
    distributed.save(place, state, 1).wait()
    other = {"x" if RANK else "y": Tensor.ones(2 * SIZE)}
    raises(CollectiveMismatch, lambda: distributed.save(place, other), "tensors", "saving.py")
    elsewhere = place if not RANK else place.with_name("elsewhere")
    raises(
        DistributedError if not RANK else InvalidValue, lambda: distributed.save(elsewhere, state)
    )
    raises(InvalidValue, lambda: distributed.load(place, {"x": Tensor.ones(3)}), "other shapes: x")
    raises(InvalidValue, lambda: distributed.load(place, {"z": Tensor.ones(3)}), "not in the model")
    (whole,) = distributed.checkpoints(place)
    part = whole / "part-00001.safetensors"
    content = part.read_bytes()
    others = (FOLDER / "layouts") / distributed.checkpoints(FOLDER / "layouts")[-1]
    group.barrier()
    for damage, text in [
        (part.unlink, "is missing"),
        (lambda: part.write_bytes(content[:-9]), "cut off"),
        (lambda: part.write_bytes(content.replace(b"x@", b"y@")), "does not know"),
        (lambda: part.write_bytes((whole / "part-00000.safetensors").read_bytes()), "not whole"),
        (lambda: part.write_bytes((others / part.name).read_bytes()), part.name),
    ]:
        if not RANK:
            damage()
        group.barrier()
        raises(FormatError, lambda: distributed.load(place, state), text)
    group.barrier()


def check_full_disk() -> None:
    """One rank that cannot write is named on all; the checkpoint before is as it was."""
    place, mesh = FOLDER / "full", Mesh((SIZE,), ("data",))
    state = {"x": Tensor(rng.normal(size=(2 * SIZE, 512))).shard(mesh, ("data",)).contiguous()}
    wanted = state["x"].numpy().copy()
    distributed.save(place, state, 1).wait()
    state["x"].assign(state["x"] * 0).realize()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    saving = distributed.save(place, state, 2)
    raises(DistributedError, saving.wait, "rank 1", "File too large")
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    group.barrier()
    assert distributed.load(place, state) == 1
    same(state, {"x": wanted})
    group.barrier()
    assert len(os.listdir(place)) == 1, [*os.walk(place)]
    group.barrier()
    distributed.save(place, state, 3).wait()


def check_seed() -> None:
    """All ranks draw the same after `init`; on a mesh whatever each draws for itself."""
    drawn = Tensor.rand(5)
    assert all(each.tolist() == drawn.tolist() for each in group.all_gather(drawn))
    if RANK:
        Tensor.rand(7).realize()
    mesh = Mesh((SIZE,), ("data",))
    x = Tensor.ones(4 * SIZE, 8).shard(mesh, ("data",))
    dropped = jit(lambda x: x.dropout(0.5))
    with Tensor.train():
        found = [x.dropout(0.5), *(dropped(x) for _ in range(3)), x.rand_like()]
    for each in found:
        first, *others = (one.tolist() for one in group.all_gather(Tensor(each.numpy())))
        assert all(other == first for other in others)
    assert len({each.numpy().tobytes() for each in found}) == 5


def check_random_numbers() -> None:
    Tensor.manual_seed(RANK)  # all go on from those of rank 0
    state = {"x": Tensor([1.0])}
    Tensor.rand(9).realize()
    distributed.save(FOLDER / "random", state)
    drawn = Tensor.rand(5).numpy()
    wanted = group.broadcast(Tensor(drawn), 0).numpy()
    distributed.load(FOLDER / "random", state)
    np.testing.assert_array_equal(Tensor.rand(5).numpy(), wanted)


def check_loader() -> None:
    """Batches are those of one process; each rank reads its own rows, and goes on from a save."""
    samples, place = Samples(11), FOLDER / "loader"
    mesh = Mesh((SIZE, 2), ("data", "model"))
    alone = Loader([*samples], 4, seed=3, device="CPU")
    loader = Loader(samples, 4, seed=3, mesh=mesh, spec=(("data",),))
    wanted = [
        [t.numpy() for t in (*values, weights)] for _ in range(2) for values, weights in alone
    ]
    found, saving = [], None
    while loader.epoch < 2:
        for (x, number), weights in loader:
            assert x.spec == ("data", None) and weights.spec == ("data",)
            found.append([t.numpy() for t in (x, number, weights)])
            if len(found) == 4:
                saving = distributed.save(place, {"loader": loader, "x": x.contiguous()}, 4)
    assert len(found) == len(wanted) == 6 and saving is not None
    again = Loader(samples, 4, seed=3, mesh=mesh)
    distributed.load(place, {"loader": again, "x": x.contiguous()})
    assert (again.epoch, again.batch) == (1, 1)
    rest = [[t.numpy() for t in (*values, weights)] for values, weights in again]
    for one, many in zip(wanted + wanted[4:], found + rest, strict=True):
        for a, b in zip(one, many, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(samples.read) <= 8 * 4 // SIZE + 3 + len(samples), len(samples.read)


def check_replicas() -> None:
    """Copies that differ are found, by name; parts that are not copies may differ."""
    mesh = Mesh((SIZE, 2), ("data", "model"))
    state = {
        "cut": Tensor(rng.normal(size=(2 * SIZE, 4))).shard(mesh, (("data", "model"),)),
        "whole": Tensor(rng.normal(size=(3,))).shard(mesh, ()),
        "local": Tensor(rng.normal(size=(3, 2))),
    }
    distributed.check_replicas(state)
    parts = [part + (RANK == 1) * 1e-9 for part in state["whole"].local()]
    wrong = Tensor.from_local(parts, mesh, ())
    raises(DistributedError, lambda: distributed.check_replicas({**state, "whole": wrong}), "whole")
    state["local"] = state["local"] + RANK
    raises(DistributedError, lambda: distributed.check_replicas(state), "local", "on [0] and on [1")


class Samples:
    """Samples that tell which of them were read."""

    def __init__(self, count: int):
        self.count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Any, int]:
        if number >= self.count:
            raise IndexError(number)
        self.read.append(number)
        return np.full(3, number, np.float32), number


run_checks(RANK, globals(), sys.argv[3:])
