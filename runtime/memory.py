"""Accounting of the live buffers of one rank while a program runs."""

from shardwright.operators.info import Array


class LiveBytes:
    """The bytes of live buffers: current and peak.

    Values that share a buffer (a reshape, a mirror) count once.

    Attributes
    ----------
    now : int
        Bytes of live buffers.
    peak : int
        Peak of `now`.
    """

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._holders: dict[int, int] = {}  # buffer -> number of values in it

    def hold(self, value: Array) -> None:
        """Add a value."""
        buffer = id(_buffer(value))
        holders = self._holders.get(buffer, 0)
        self._holders[buffer] = holders + 1
        if not holders:
            self.now += value.nbytes
            self.peak = max(self.peak, self.now)

    def release(self, value: Array) -> None:
        """Remove a value."""
        buffer = id(_buffer(value))
        self._holders[buffer] -= 1
        if not self._holders[buffer]:
            del self._holders[buffer]
            self.now -= value.nbytes


def _buffer(value: Array) -> object:
    """Return the object that identifies the buffer; broadcast elements count in full."""
    base = value.base
    return base if base is not None and getattr(base, "nbytes", 0) == value.nbytes else value
