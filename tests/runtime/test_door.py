"""A door keeps few unknown callers, the youngest, whatever they do while they are watched."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from shardwright.runtime.encrypted import door

MOST = 3
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["come", "wrap", "wrap", "know"]), st.integers(0, 9)), min_size=20
)


class _Caller:
    """Stands for a connection, and notes whether it was closed."""

    def __init__(self, is_closed=False):
        self.is_closed = is_closed

    def shutdown(self, how):
        self.is_closed = True


@given(ACTIONS)
def test_the_oldest_unknown_callers_are_closed_where_there_are_too_many(actions):
    """A caller that is closed may still be wrapped: its thread learns of it afterwards."""
    with patch.object(door, "_MOST", MOST):
        _attack(actions)


def _attack(actions):
    watched = door.Door(None, lambda connection: None)
    callers = []  # in the order of their arrival
    for action, which in actions:
        if action == "come":
            watched._close_late(1)
            callers.append(_Caller())
            watched.watch(callers[-1])
        elif callers and action == "wrap":
            place = which % len(callers)
            before, after = callers[place], _Caller(callers[place].is_closed)
            watched.watch(after, before)
            callers[place] = after
        elif callers:
            caller = callers.pop(which % len(callers))
            assert watched.know(caller) or caller.is_closed
        is_open = [not caller.is_closed for caller in callers]
        assert sum(is_open) <= MOST
        assert is_open == sorted(is_open)
