"""Kernels of GPUs compiled for this machine: its CPU runs the threads of a block in turn.

A thread waits for the others by going back to `launch`, which lets each go on in turn.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

FIBERS = r"""
#include <stdlib.h>
#include <ucontext.h>
struct Index { unsigned x; };
static Index blockIdx, threadIdx;
static ucontext_t launching, fibers[1024];
static bool finished[1024];
static void **given;
static int chosen;
static void wait_for_all() { swapcontext(&fibers[threadIdx.x], &launching); }
template <class T> static T exchanged(T x, unsigned distance) {
  static T given_by[1024];
  given_by[threadIdx.x] = x;
  wait_for_all();
  const T result = given_by[threadIdx.x ^ distance];
  wait_for_all();
  return result;
}
static void call(int which);
static void whole_thread() { call(chosen); finished[threadIdx.x] = true; }
extern "C" int launch(int which, void **arguments, long blocks, unsigned threads) {
  chosen = which;
  const size_t size = 1 << 18;
  char *stacks = (char *)malloc(size * threads);
  given = arguments;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    for (unsigned t = 0; t < threads; t++) {
      finished[t] = false;
      getcontext(&fibers[t]);
      fibers[t].uc_stack.ss_sp = stacks + size * t;
      fibers[t].uc_stack.ss_size = size;
      fibers[t].uc_link = &launching;
      makecontext(&fibers[t], whole_thread, 0);
    }
    for (unsigned left = threads; left;) {
      unsigned arrived = 0;
      for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
        swapcontext(&launching, &fibers[threadIdx.x]);
        if (finished[threadIdx.x]) left--; else arrived++;
      }
      if (left && arrived != threads) return 1;
    }
  }
  free(stacks);
  return 0;
}
"""
"""C++ that `call(which)` and the kernels follow: `launch` runs one of them on the words `given`."""


def run_fibers(
    command: Sequence[str],
    code: str,
    launches: Sequence[Mapping[str, int]],
    arrays: Sequence[Sequence[np.ndarray]],
    vals: tuple[int, ...],
) -> None:
    """Compiles code that begins with `FIBERS`, by a command that is given `{library}` to write, and
    launches each of its kernels on arrays, which they may change.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "kernels.so")
        words = [word.format(library=library) for word in command]
        done = subprocess.run(words, input=code, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        launch = ctypes.CDLL(library).launch
        for number, (data, given) in enumerate(zip(launches, arrays, strict=True)):
            _launch(partial(launch, number), data, given, vals)


def _launch(
    launch: Callable[..., int],
    data: Mapping[str, int],
    arrays: Sequence[np.ndarray],
    vals: tuple[int, ...],
) -> None:
    buffers = [_aligned(array) for array in arrays]
    workspace = [_aligned(np.zeros(data["workspace"], np.uint8))] if data["workspace"] else []
    words = [b.ctypes.data for b in (*buffers, *workspace)] + list(vals)
    arguments = (ctypes.c_int64 * len(words))(*words)
    failed = launch(arguments, ctypes.c_long(data["groups"]), data["block"])
    assert not failed, "some threads of a block ended where others waited for them"
    for array, buffer in zip(arrays, buffers, strict=True):
        array.view(np.uint8).reshape(-1)[:] = buffer[: array.nbytes]


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy of an array's bytes that begins where buffers do."""
    room = np.zeros(array.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    room[start : start + array.nbytes] = array.view(np.uint8).reshape(-1)
    return room[start:]
