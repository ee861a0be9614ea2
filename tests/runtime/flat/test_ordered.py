"""Reductions in the order of the members: the bits of one process, whoever is early."""

import random

import numpy as np
import pytest

from shardwright.operators.communication.collectives import REDUCTIONS
from shardwright.runtime.flat.ordered import OrderedReduction


class Request:
    """A message that is sent or awaited."""

    def __init__(self, arrived, take=lambda: None):
        self.arrived, self.take, self.ended = arrived, take, False

    def test(self):
        if not self.ended and self.arrived():
            self.take()
            self.ended = True
        return self.ended

    @staticmethod
    def Testall(requests):  # noqa: N802
        return all([request.test() for request in requests])


class Member:
    """One of several members in this process; messages wait in a table."""

    def __init__(self, rank, size, messages):
        self.rank, self.size, self.messages = rank, size, messages

    def Isend(self, data, dest, tag):  # noqa: N802
        assert (self.rank, dest, tag) not in self.messages
        self.messages[self.rank, dest, tag] = data.copy()
        return Request(lambda: True)

    def Irecv(self, buffer, source, tag):  # noqa: N802
        key = source, self.rank, tag

        def take():
            buffer[...] = self.messages.pop(key)

        return Request(lambda: key in self.messages, take)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_every_member_has_the_reduction_in_order(size, kind):
    """Of numbers whose sum depends on the order; some members have no piece of a short buffer."""
    draw = random.Random(size)
    for length in (1, 4, 7):
        numbers = np.random.default_rng(length)
        parts = [numbers.normal(size=length) * 10.0 ** numbers.integers(-9, 9) for _ in range(size)]
        expected = parts[0].copy()
        for part in parts[1:]:
            expected = REDUCTIONS[kind](expected, part)
        messages, buffers = {}, [part.copy() for part in parts]
        waiting = [
            OrderedReduction(Member(rank, size, messages), Request, buffers[rank], kind, 7)
            for rank in range(size)
        ]
        for _ in range(40):
            draw.shuffle(waiting)
            waiting = [one for one in waiting if not one.Test()]
        assert not waiting
        assert not messages
        for buffer in buffers:
            assert buffer.tobytes() == expected.tobytes()
