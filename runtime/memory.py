"""Accounting of the buffers that live on one rank while a program runs."""

from shardwright.operators.info import Array


class LiveBytes:
    """The bytes of live buffers, now and at most.

    Values that are the same buffer looked at differently (a reshape, a mirror) count once.

    Attributes
    ----------
    now : int
        Bytes of the buffers that some value holds.
    peak : int
        The most there were at once.
    """

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._holders: dict[int, int] = {}  # buffer -> how many values hold it

    def hold(self, value: Array) -> None:
        """Add a value."""
        buffer = id(_buffer(value))
        holders = self._holders.get(buffer, 0)
        self._holders[buffer] = holders + 1
        if not holders:
            self.now += value.nbytes
            self.peak = max(self.peak, self.now)

    def release(self, value: Array) -> None:
        """Take a value away."""
        buffer = id(_buffer(value))
        self._holders[buffer] -= 1
        if not self._holders[buffer]:
            del self._holders[buffer]
            self.now -= value.nbytes


def _buffer(value: Array) -> object:
    """Return what identifies the buffer; a repeated element counts as if it were written out."""
    base = value.base
    return base if base is not None and getattr(base, "nbytes", 0) == value.nbytes else value
