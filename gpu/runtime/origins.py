"""Which lines of the user's code made the nodes that a computation is about.

An error that shows when a value is computed comes from another line than the one at fault. So each
tensor's node is noted with the place that made it, at about a microsecond, and an error gets a note
of the lines of what was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import _getframe
from types import CodeType, FrameType
from typing import Final

from gpu.compiler.ir.graph import Node, known_nodes, toposort
from gpu.core.callsite import CallSite, is_users
from gpu.core.errors import GpuError

# Lines named in one error, and nodes that are looked at to find each.
_MOST_LINES: Final = 4
_MOST_NODES: Final = 1000
_MOST_OPERATIONS: Final = 12
_COMPUTING: Final = "while computing what was made at "

_is_users: dict[str, bool] = {}


def note_origin(node: Node) -> None:
    """Notes that the line of the user's code that is being run made `node`, if it is new."""
    if node.origin is None:
        node.origin = users_place()


def users_place() -> tuple[CodeType, int] | None:
    """Where in the user's code is being run what called the caller of this, for `line_of`.

    The code with the offset of the instruction: the line is only looked up when it is needed.
    """
    frame: FrameType | None = _getframe(2)
    while frame is not None:
        code = frame.f_code
        try:
            users = _is_users[code.co_filename]
        except KeyError:
            users = _is_users[code.co_filename] = is_users(code.co_filename)
        if users:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def line_of(place: tuple[CodeType, int]) -> CallSite | None:
    """The line of a place that `users_place` gave; None for code that has none."""
    code, offset = place
    lines = code.co_lines()
    line = next((line for start, end, line in lines if start <= offset < end), None)
    return None if line is None else CallSite(code.co_filename, line)


def copy_origin(old: Node, new: Node) -> None:
    """Notes for what stands in the place of a node the line that made that."""
    if new.origin is None:
        new.origin = old.origin


def known_origins() -> Iterator[tuple[Node, tuple[CodeType, int]]]:
    """The nodes that there are whose lines are known, oldest first, with those for `line_of`."""
    for node in known_nodes():
        if node.origin is not None:
            yield node, node.origin


def origin_of(node: Node) -> CallSite | None:
    """The line that made `node`, None where that is not known."""
    return None if node.origin is None else line_of(node.origin)


def origins(nodes: Iterable[Node]) -> list[CallSite]:
    """The lines that made `nodes`, each once: of a node without one, those of its sources."""
    found: dict[CallSite, None] = {}
    waiting, seen = list(nodes), 0
    while waiting and seen < _MOST_NODES and len(found) < _MOST_LINES:
        node, seen = waiting.pop(0), seen + 1
        if node.origin is None:
            waiting += node.src
        elif (site := origin_of(node)) is not None:
            found[site] = None
    return list(found)


class Origin:
    """What a graph computes and the lines that made it, in words when they are asked for."""

    def __init__(self, roots: Iterable[Node], is_leaf: Callable[[Node], bool]):
        """Keeps no node; ``is_leaf`` tells those that are in memory."""
        roots = list(roots)
        self._operations = operations(n for n in toposort(roots, is_leaf) if not is_leaf(n))
        self._sites = origins(roots)

    def __str__(self) -> str:
        told = [f"of what computes {listed(self._operations)}"] if self._operations else []
        told += [f"first asked for at {site}" for site in self._sites]
        return "; ".join(told)


def operations(nodes: Iterable[Node]) -> list[str]:
    """What nodes compute, each operation once."""
    return list(dict.fromkeys(name for name in map(_operation, nodes) if name))


def listed(operations: Sequence[str]) -> str:
    """The first of some operations, for people."""
    more = ", ..." if len(operations) > _MOST_OPERATIONS else ""
    return ", ".join(operations[:_MOST_OPERATIONS]) + more


def _operation(node: Node) -> str:
    """What a node computes; empty where it only says which elements are meant."""
    match node.kind:
        case "alu":
            return str(node.attr[0])
        case "reduce":
            return f"reduce {node.attr[0]}"
        case "buffer" | "const" | "reshape" | "expand" | "permute" | "slice" | "contiguous":
            return ""
    return node.kind


def name_origins(error: GpuError, nodes: Iterable[Node]) -> None:
    """Adds a note of the lines that made `nodes` to an error, unless it has one already."""
    has_one = any(note.startswith(_COMPUTING) for note in getattr(error, "__notes__", ()))
    sites = [] if has_one else origins(nodes)
    if sites:
        error.add_note(_COMPUTING + "\n  and at ".join(map(str, sites)))
