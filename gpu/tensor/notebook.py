"""What notebooks show of a tensor: a bounded table, shaded by value."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Rows and columns that a table has at most; of more, those at both ends are shown.
ROWS: Final = 12
COLUMNS: Final = 12
_CELL: Final = "padding:2px 6px;text-align:right;font-family:monospace"
_RED_BLUE: Final = ("200,60,40", "40,100,200")


def table(array: npt.NDArray[Any], facts: str) -> str:
    """HTML of the last two axes of an array, under `facts`; of more axes, the first plane."""
    plane = array[(0,) * (array.ndim - 2)] if array.ndim > 2 and array.size else array
    note = ""
    if array.ndim > 2 and array.size:
        note = f" &middot; shown is [{', '.join('0' * (array.ndim - 2))}]"
    head = f"<div><code>{html.escape(facts)}</code>{note}</div>"
    if not array.size:
        return head
    grid = plane.reshape(1, -1) if plane.ndim < 2 else plane
    rows, columns = _places(grid.shape[0], ROWS), _places(grid.shape[1], COLUMNS)
    shown = grid[np.ix_([r for r in rows if r >= 0], [c for c in columns if c >= 0])]
    top = _magnitude(shown)
    lines = []
    for row in rows:
        cells = [_cell(grid[row, c] if min(row, c) >= 0 else None, top) for c in columns]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"{head}<table>{''.join(lines)}</table>"


def _places(size: int, most: int) -> Sequence[int]:
    """Places along an axis, with -1 for those that are left out."""
    if size <= most:
        return range(size)
    half = most // 2
    return [*range(half), -1, *range(size - half, size)]


def _magnitude(shown: npt.NDArray[Any]) -> float:
    """The largest finite magnitude, or 1 where all are 0."""
    sizes = np.abs(shown if shown.dtype.kind == "c" else shown.astype(np.float64))
    sizes = sizes[np.isfinite(sizes)]
    return float(sizes.max(initial=0.0)) or 1.0


def _cell(value: Any, top: float) -> str:
    if value is None:
        return f'<td style="{_CELL}">&hellip;</td>'
    number = float(abs(value) if isinstance(value, np.complexfloating) else value)
    share = min(1.0, abs(number) / top) if math.isfinite(number) else 1.0
    color = _RED_BLUE[number < 0]
    text = html.escape(np.array2string(np.asarray(value)))
    return f'<td style="{_CELL};background:rgba({color},{0.5 * share:.2f})">{text}</td>'
