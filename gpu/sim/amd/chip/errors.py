"""What engines of the chip cannot do."""

from __future__ import annotations


class PacketError(Exception):
    """A packet that hardware would not understand, or that does what may not be done."""
