"""What is in flight in the backward passes of a schedule, and what follows the last of them."""

from functools import lru_cache
from itertools import takewhile

from shardwright.dataflow.schedules import BACKWARD, FORWARD, WEIGHTS, InFlight, Schedule


@lru_cache(maxsize=256)
def put_off_last(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return for each group the stages whose gradients of weights follow its last backward pass."""
    last = (takewhile(lambda one: one.part == WEIGHTS, order[::-1]) for order in schedule.actions)
    return tuple(tuple(action.stage for action in order) for order in last)


@lru_cache(maxsize=256)
def backward_passes(schedule: Schedule) -> tuple[tuple[tuple[int, InFlight], ...], ...]:
    """Return for each device group the chunk of a backward pass, and what is in flight in it."""
    found = []
    for order in schedule.actions:
        passes, weights = [0] * schedule.chunks, [0] * schedule.chunks
        own = dict[tuple[int, InFlight], None]()
        for stage, part, _ in order:
            chunk = stage // schedule.groups
            passes[chunk] += part == FORWARD
            if part == BACKWARD:
                own[chunk, InFlight(tuple(passes), tuple(weights))] = None
                passes[chunk] -= 1
                weights[chunk] += WEIGHTS in schedule.parts
            weights[chunk] -= part == WEIGHTS
        found.append(tuple(own))
    return tuple(found)
