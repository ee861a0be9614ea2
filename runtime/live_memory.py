"""Accounting of the live buffers of one rank while a program runs."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from shardwright.operators.communication.rings import Exchange, Message, Receive, Turns
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

    def reach(self, nbytes: float) -> None:
        """Count bytes that an operator held while it ran."""
        self.peak = max(self.peak, self.now + round(nbytes))

    def release(self, value: Array) -> None:
        """Remove a value."""
        buffer = id(_buffer(value))
        self._holders[buffer] -= 1
        if not self._holders[buffer]:
            del self._holders[buffer]
            self.now -= value.nbytes


@dataclass
class RankMemory:
    """The live buffers of one rank, those in host memory apart.

    Parameters
    ----------
    hosted : set
        The values in host memory: their names, or what stands for them.
    device, host : LiveBytes
        The bytes in either memory.
    """

    hosted: Set[object] = frozenset()
    device: LiveBytes = field(default_factory=LiveBytes)
    host: LiveBytes = field(default_factory=LiveBytes)

    def hold(self, name: object, value: Array) -> None:
        """Add a value."""
        (self.host if name in self.hosted else self.device).hold(value)

    def release(self, name: object, value: Array) -> None:
        """Remove a value."""
        (self.host if name in self.hosted else self.device).release(value)


@dataclass
class TurnsMemory:
    """The bytes that a rank holds in the turns of an operator, beside its operands.

    The arrays of the turns are counted as they are; so are messages, from the begin of an exchange
    until they are taken.

    Parameters
    ----------
    operands : sequence of array
        The operands.
    scale : float
        Bytes of an element of the program for each byte of one of an array.
    """

    operands: Sequence[Array]
    scale: float = 1.0
    _held: list[int] = field(default_factory=list)  # in each exchange, without messages
    _messages: dict[int, tuple[int, int]] = field(default_factory=dict)  # bytes, and until when

    @property
    def peak(self) -> float:
        """The greatest number of bytes in an exchange."""
        arriving = [
            sum(size for i, (size, last) in self._messages.items() if i <= now <= last)
            for now in range(len(self._held))
        ]
        pairs = zip(self._held, arriving, strict=True)
        return self.scale * max((held + more for held, more in pairs), default=0)

    def watched(self, turns: Turns) -> Turns:
        """Return the same turns, counted."""
        try:
            exchange = next(turns)
            while True:
                number = self._begun(exchange)
                receive = yield exchange
                exchange = turns.send(self._counting(receive, number))
        except StopIteration as end:
            return end.value

    def _begun(self, exchange: Exchange) -> int:
        sent = (array for m in exchange.sends.values() for some in m.values() for array in some)
        self._held.append(self._bytes((*exchange.held, *sent)))
        return len(self._held) - 1

    def _counting(self, receive: Receive, number: int) -> Receive:
        def counted() -> Mapping[int, Message]:
            found = receive()
            arrays = (array for m in found.values() for some in m.values() for array in some)
            self._messages[number] = self._bytes(arrays), len(self._held) - 1
            return found

        return counted

    def _bytes(self, arrays: Iterable[Array]) -> int:
        own = {id(_buffer(array)) for array in self.operands}
        found = {id(_buffer(array)): array.nbytes for array in arrays}
        return sum(nbytes for buffer, nbytes in found.items() if buffer not in own)


def _buffer(value: Array) -> object:
    """Return the object that identifies the buffer; broadcast elements count in full."""
    base = value.base
    return base if base is not None and getattr(base, "nbytes", 0) == value.nbytes else value
