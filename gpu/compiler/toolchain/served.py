"""The child's side of `helper`: answers requests until there are no more.

Only what every child needs is imported: it is waited for.
"""

from __future__ import annotations

import os
import select
import struct
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gpu.core.errors import CompileError, GpuError, ParseError, Unsupported

_LENGTH: Final = struct.Struct("<Q")
_STDIN: Final = 0
HELLO: Final = b"ready"
"""What a child sends when it is ready to be asked."""
MADE: Final = b"+"
"""How the answer to a request that succeeded begins."""
ERRORS: Final[dict[type[GpuError], bytes]] = {
    CompileError: b"C",
    ParseError: b"P",
    Unsupported: b"U",
}
"""How an answer begins that is the message of an error."""


def serve(answer: Callable[[bytes], bytes]) -> None:
    """Answers requests with bytes or one of `ERRORS`. Any other exception ends the child."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is told of, and needs no dump
    replies = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    start_new_thread(_end_with_the_other_side, ())
    with suppress(BrokenPipeError):  # nobody waits any more
        send(replies, HELLO)
        while (request := receive(_STDIN)) is not None:
            send(replies, _result(answer, request))


def _result(answer: Callable[[bytes], bytes], request: bytes) -> bytes:
    try:
        return MADE + answer(request)
    except tuple(ERRORS) as error:
        return ERRORS[type(error)] + error.message.encode()


def _end_with_the_other_side() -> None:
    """Ends this process as soon as nobody can ask any more, whatever it is doing then."""
    closing = select.poll()
    closing.register(_STDIN, 0)  # an end of the pipe is told without being asked for
    closing.poll()
    os._exit(0)


def send(descriptor: int, data: bytes) -> None:
    """Writes bytes with their number in front."""
    rest = memoryview(_LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> bytes | None:
    """What was sent, or None where the other side ended before."""
    head = _read(descriptor, _LENGTH.size)
    return None if head is None else _read(descriptor, _LENGTH.unpack(head)[0])


def _read(descriptor: int, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = os.read(descriptor, size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)
