"""Tensors go from process to process by value, whichever way the processes were started."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.core.errors import HwTimeout
from tensor.reference import rng_for, torch
from workers import Model, Rows, Trainer, answer, fail, negated, stacked, trained

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

_PATIENCE = 120.0  # seconds
DTYPES = ("bool", "uint8", "int64", "float16", "bfloat16", "fp8e4m3", "float32", "float64")


@pytest.fixture(params=["fork", "spawn"])
def context(request: pytest.FixtureRequest) -> BaseContext:
    """A way to start processes."""
    Tensor([1.0]).add(1).realize()  # so that a forked child has the parent's device
    method: str = request.param
    return multiprocessing.get_context(method)


@contextmanager
def answering(context: BaseContext) -> Iterator[tuple[Any, Any, Any]]:
    """A process that answers, and the two queues to it and from it."""
    inbox, outbox = context.Queue(), context.Queue()
    process: Any = context.Process(target=answer, args=(inbox, outbox))  # type: ignore[attr-defined]
    process.start()
    try:
        yield inbox, outbox, process
    finally:
        process.kill()
        process.join()
        for queue in (inbox, outbox):
            queue.cancel_join_thread()
            queue.close()
            queue.join_thread()


def test_queues(context: BaseContext) -> None:
    rng = rng_for("queues")
    with answering(context) as (inbox, outbox, process):
        for dtype in DTYPES:
            for shape in ((), (0, 3), (5,), (3, 4)):
                x = Tensor(rng.integers(0, 2, shape)).cast(dtype)
                for sent in (x, x.contiguous().realize(), x.T):
                    inbox.put(sent)
                    same, twice = outbox.get(timeout=_PATIENCE)
                    assert (same.dtype, same.tolist()) == (sent.dtype, sent.tolist())
                    assert twice.tolist() == (sent * 2).tolist()
        inbox.put(None)
        process.join(_PATIENCE)
        assert process.exitcode == 0


def test_what_a_process_sent_outlives_it(context: BaseContext) -> None:
    values = rng_for("outlives").standard_normal((5, 1_000_000)).astype(np.float32)
    x = Tensor(values)
    with answering(context) as (inbox, outbox, process):
        inbox.put(x[2])
        inbox.put(x)
        inbox.put(None)
        first = outbox.get(timeout=_PATIENCE)
        second = outbox.get(timeout=_PATIENCE)
        process.join(_PATIENCE)
        del x
        for (same, twice), expected in ((first, values[2]), (second, values)):
            assert (same.numpy() == expected).all() and (twice.numpy() == expected * 2).all()


def test_pools_and_futures(context: BaseContext) -> None:
    rng = rng_for("pools")
    arrays = [rng.standard_normal((n, 7)).astype(np.float32) for n in (1, 0, 3000, 40_000)]
    tensors = [Tensor(array) for array in arrays]
    with context.Pool(2) as pool:
        answers = pool.map(negated, tensors, chunksize=1)
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        answers += executor.map(negated, tensors)
        error = executor.submit(fail, 3).exception(_PATIENCE)
    for (number, got), expected in zip(answers, arrays * 2, strict=True):
        assert number != os.getpid() and (got.numpy() == -expected).all()
    assert isinstance(error, HwTimeout) and error.last == 3


def test_models_are_trained_elsewhere(context: BaseContext) -> None:
    trainer = Trainer()
    model, x = Model(), Tensor([[1.0, 2.0, 3.0]])
    says = model.predict(x).item()
    trainer.losses(3)
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        other, losses = executor.submit(trained, trainer).result(_PATIENCE)
        answer = executor.submit(model.predict, x).result(_PATIENCE)
    assert answer.item() == pytest.approx(says, rel=1e-5)
    np.testing.assert_allclose(trainer.losses(4), losses, rtol=1e-4)
    assert other.parameters[0] is other.model.first.weight is other.optimizer.params[0]
    np.testing.assert_allclose(other.losses(2), trainer.losses(2), rtol=1e-4)


def shared_memory() -> set[str]:
    """Names in the memory that processes share, less the semaphores of queues."""
    return {p.name for p in Path("/dev/shm").glob("*") if not p.name.startswith("sem.")}


def test_a_killed_process_leaves_nothing_and_harms_nobody(context: BaseContext) -> None:
    before = shared_memory()
    x = Tensor.ones(4_000_000).contiguous().realize()
    with answering(context) as (inbox, outbox, process):
        for _ in range(4):
            inbox.put(x)
        outbox.get(timeout=_PATIENCE)
        os.kill(process.pid, signal.SIGKILL)  # with answers on their way
        process.join(_PATIENCE)
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        number, _ = executor.submit(negated, x).result(_PATIENCE)
        waiting = [executor.submit(negated, x) for _ in range(3)]
        os.kill(number, signal.SIGKILL)
        errors = [future.exception(_PATIENCE) for future in waiting]
    assert all(error is None or isinstance(error, BrokenProcessPool) for error in errors)
    assert shared_memory() <= before
    assert x.sum().item() == 4_000_000


def test_loaders_of_torch(context: BaseContext) -> None:
    data = rng_for("loader").standard_normal((50, 6)).astype(np.float32)
    loader = torch.utils.data.DataLoader(
        Rows(Tensor(data)),
        batch_size=8,
        num_workers=2 if context.get_start_method() == "fork" else 1,  # each imports torch anew
        collate_fn=stacked,
        multiprocessing_context=context,
    )
    batches = list(loader)
    assert [len(batch) for batch in batches] == [8] * 6 + [2]
    assert (np.concatenate([batch.numpy() for batch in batches]) == data * 2).all()
