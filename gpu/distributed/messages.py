"""What processes tell each other besides the elements of tensors: JSON, with its size checked.

Nothing that is received is unpickled or otherwise run.
"""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.core.callsite import CallSite
from gpu.core.errors import CollectiveMismatch, DistributedError, FormatError, PeerFault, PeerLost
from gpu.distributed.exchange import Bytes

LARGEST: Final = 1 << 14  # bytes of a message
DIGEST: Final = 16  # bytes
_LONGEST_LINE: Final = 200  # characters of a line of the user's; JSON has up to 6 bytes for one
_LONGEST_TEXT: Final = 2000


class What(NamedTuple):
    """What a call does, which has to be the same on all ranks that take part.

    Attributes:
        name: of the method.
        dtype: the elements'.
        shape: of the tensor that each rank gives.
        how: the other arguments, as in ``op='sum'``.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    how: str = ""

    def __str__(self) -> str:
        tensor = f"{self.dtype}{list(self.shape)}" if self.dtype else ""
        return f"{self.name}({', '.join(filter(None, (tensor, self.how)))})"

    @property
    def digest(self) -> bytes:
        """The same for the same call, on all machines."""
        return _digest(self)


@lru_cache(1024)
def _digest(what: What) -> bytes:
    return blake2b(repr(tuple(what)).encode(), digest_size=DIGEST).digest()


def pack(message: dict[str, Any]) -> Bytes:
    """A message as bytes, of which there are at most `LARGEST`."""
    # Not as escapes, of which those of a character may have 12 bytes; "?" for what is no text.
    data = json.dumps(message, ensure_ascii=False).encode(errors="replace")
    assert len(data) <= LARGEST, "messages are made of short texts"
    return np.frombuffer(data, np.uint8)


def unpack(data: Bytes, sender: int) -> dict[str, Any]:
    """A message of a rank. Raises FormatError for what is none."""
    try:
        message = json.loads(data.tobytes())
    except ValueError as error:  # of Unicode's too
        raise FormatError(f"rank {sender} sent what is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FormatError(f"rank {sender} sent {message!r:.100}: expected an object of JSON")
    return message


def field(message: dict[str, Any], name: str, kind: type, sender: int) -> Any:
    """A field of a message. Raises FormatError where it is missing or of another kind."""
    value = message.get(name)
    if not isinstance(value, kind):
        raise FormatError(
            f"rank {sender} sent a message whose {name} is {value!r:.100}: expected"
            f" {kind.__name__}; do all ranks have the same version of this package?"
        )
    return value


def place_of(site: CallSite | None) -> str:
    """A line of the user's, as others are told of it."""
    return "an unknown line" if site is None else str(site)[:_LONGEST_LINE]


def told(error: Exception) -> dict[str, Any]:
    """What ended a rank's part, for the others."""
    message = error.message if isinstance(error, DistributedError) else str(error)
    told: dict[str, Any] = {
        "kind": "failed",
        "error": type(error).__name__,
        "text": message[:_LONGEST_TEXT],
    }
    if isinstance(error, PeerLost):
        told |= {"rank": error.rank, "host": error.host, "step": error.step}
        told["collective"] = error.collective
    if isinstance(error, PeerFault):
        told["address"] = error.address
    return told


def error_of(message: dict[str, Any], sender: int) -> DistributedError:
    """The error that a rank told of."""
    text = field(message, "text", str, sender)
    if message.get("error") in ("PeerLost", "PeerFault"):
        rank, step = (field(message, name, int, sender) for name in ("rank", "step"))
        host, collective = (field(message, name, str, sender) for name in ("host", "collective"))
        if message["error"] == "PeerLost":
            return PeerLost(text, rank, host, step, collective)
        address = message.get("address")
        known = address if isinstance(address, int) else None
        return PeerFault(text, rank, host, step, collective, known)
    return (
        CollectiveMismatch(text)
        if message.get("error") == "CollectiveMismatch"
        else (DistributedError(text))
    )
