"""Draws a part of a timeline that `GPU_PROFILE=file.json` wrote, as a small SVG.

    python -m tools.timeline step.json step.svg --span "replay train.<locals>.step" --number 3

It shows what Python's threads and the queues of all devices did during a span that is named, or in
the whole file. Perfetto (ui.perfetto.dev) opens the file itself, and shows much more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from gpu.core.files import atomic_file

Event = dict[str, Any]

WIDTH: Final = 1000
_LEFT: Final = 130  # for names of rows
_ROW: Final = 16
_GAP: Final = 8  # between processes
_LETTER: Final = 5.2  # columns of a letter, at most
_COLOURS: Final = {
    "python": "#b9c7d9",
    "compile": "#d9c7b0",
    "copy": "#7fb08f",
    "launch": "#8fa3c4",
    "kernel": "#c9744f",
    "wait": "#b05a7a",
}


class Bar(NamedTuple):
    """A span as it is drawn: where it begins and ends, from 0 to 1, in which row."""

    event: Event
    start: float
    end: float
    depth: int


class Row(NamedTuple):
    """A thread: its name, and its bars."""

    process: str
    name: str
    bars: list[Bar]

    @property
    def height(self) -> int:
        """Pixels."""
        return _ROW * (1 + max((bar.depth for bar in self.bars), default=0))


def window(events: Sequence[Event], name: str | None, number: int) -> tuple[float, float]:
    """When the part begins and ends. Raises ValueError where there is no such span."""
    slices = [event for event in events if event["ph"] == "X"]
    named = slices if name is None else [event for event in slices if event["name"] == name]
    if not named or (name is not None and len(named) <= number):
        raise ValueError(f"there are {len(named)} spans called {name!r}, not {number + 1}")
    chosen = named if name is None else named[number : number + 1]
    return min(e["ts"] for e in chosen), max(e["ts"] + e["dur"] for e in chosen)


def rows(events: Sequence[Event], begin: float, end: float) -> list[Row]:
    """What each thread did in the meantime; those that did nothing are left out."""
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"].get("name", "")
        for event in events
        if event["ph"] == "M"
    }
    found: dict[tuple[int, int], list[Bar]] = {}
    until: dict[tuple[int, int], list[float]] = {}
    for event in events:
        if event["ph"] != "X" or event["ts"] >= end or event["ts"] + event["dur"] <= begin:
            continue
        track = event["pid"], event["tid"]
        inside = until.setdefault(track, [])
        while inside and inside[-1] <= event["ts"]:
            inside.pop()
        last = event["ts"] + event["dur"]
        first = max(0.0, (event["ts"] - begin) / (end - begin))
        share = min(1.0, (last - begin) / (end - begin))
        found.setdefault(track, []).append(Bar(event, first, share, len(inside)))
        inside.append(last)
    return [
        Row(names["process_name", pid, 0], names["thread_name", pid, tid], found[pid, tid])
        for pid, tid in sorted(found)
    ]


def draw(table: Sequence[Row], milliseconds: float) -> str:
    """The picture."""
    parts, y, process = [], _ROW, ""
    for row in table:
        if row.process != process:
            process, y = row.process, y + _GAP
        name = row.process if row.process.startswith("Python") else _short(row)
        parts.append(f'<text x="2" y="{y + 11}">{escape(name)}</text>')
        parts += [_bar(bar, y) for bar in row.bars]
        y += row.height + 1
    told = f"{milliseconds:.3f} ms"
    legend = "".join(
        f'<rect x="{_LEFT + 90 * i}" y="2" width="10" height="10" fill="{colour}"/>'
        f'<text x="{_LEFT + 90 * i + 14}" y="11">{name}</text>'
        for i, (name, colour) in enumerate(_COLOURS.items())
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 4}" width="{WIDTH}"'
        ' font-family="sans-serif" font-size="9"><rect width="100%" height="100%" fill="#fff"/>'
    )
    scale = f'<text x="{WIDTH - 2}" y="11" text-anchor="end">{told}</text>'
    return "\n".join([head, legend, scale, *parts, "</svg>"]) + "\n"


def _short(row: Row) -> str:
    """``AMD:1 copy queue 0``, without what tells one GPU of a machine from another."""
    words = row.name.split()
    known = [i for i, word in enumerate(words) if word in ("compute", "copy")]
    return f"{row.process} {' '.join(words[known[0] :]) if known else row.name}"


def _bar(bar: Bar, y: int) -> str:
    x = _LEFT + bar.start * (WIDTH - _LEFT)
    width = max(0.5, (bar.end - bar.start) * (WIDTH - _LEFT))
    name, top = bar.event["name"], y + bar.depth * _ROW
    colour = _COLOURS.get(bar.event["cat"], "#cccccc")
    title = escape(f"{name}: {bar.event['dur']:.3f} us")
    box = (
        f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_ROW - 2}" fill="{colour}">'
        f"<title>{title}</title></rect>"
    )
    letters = int((width - 4) / _LETTER)
    if letters < len(name) and letters < 8:
        return box
    shown = name if len(name) <= letters else name[: letters - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f'{box}<text x="{x + 2:.1f}" y="{top + 11}">{escape(shown)}</text>'


def main(arguments: Iterable[str]) -> int:
    """Reads a file, draws, and writes; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--span", help="the name of a span: its time is drawn (default: all)")
    parser.add_argument("--number", type=int, default=0, help="which of that name, from 0")
    parsed = parser.parse_args([*arguments])
    events = json.loads(parsed.trace.read_bytes())["traceEvents"]
    try:
        begin, end = window(events, parsed.span, parsed.number)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    picture = draw(rows(events, begin, end), (end - begin) / 1000)
    with atomic_file(parsed.picture) as file:
        file.write(picture.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
