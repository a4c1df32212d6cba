"""A bar for long loads and saves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

_WORTH_SHOWING: Final = 64 << 20  # bytes: below, a bar would be gone before it is read


@contextlib.contextmanager
def byte_progress(description: str, total: int) -> Iterator[Callable[[int], object]]:
    """A function to call with the number of bytes just done, of `total`.

    It moves a bar where standard error is a terminal and there is much to do, else does nothing.
    """
    if total < _WORTH_SHOWING or not sys.stderr.isatty():
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=description, unit="B", unit_scale=True, leave=False) as bar:
        yield bar.update
