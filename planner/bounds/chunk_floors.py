"""Floors of pipelines whose device groups run several stages, by mixtures of critical paths.

Let stage s take f_s seconds for the forward and b_s for the backward segment of a micro-batch. A
path through the graph of the schedule that passes these segments F_s and B_s times takes no longer
than the step, nor does a mixture of paths, whose numbers need not be whole. So

    step >= sum over s of  F_s f_s + B_s b_s.

Of the segments only this is known. What one device of the group computes of stage s, c_s seconds,
adds up to C over all stages, and of that at least a share phi is in its forward and a share beta in
its backward segment. And f_s + b_s is at least c_s, and adds up to at least C + E: E seconds of
communication, of any stages. With m_s = min(F_s, B_s), what a stage takes besides its shares of c_s
counts m_s at least, so

    step >= alpha C + delta E,    alpha = min over s of  phi F_s + beta B_s + (1 - phi - beta) m_s,
                                  delta = min over s of  m_s.

Every mixture proves that. That one is taken by which it is highest for an E of a few percent: of
the critical paths of the segments with the shortest step, which a linear program finds
(`solver.linear_program.path_mixture`). It holds for any seconds of the stages, so for any cuts of
which the shares hold.
"""

from dataclasses import dataclass
from functools import lru_cache

from shardwright.dataflow.orders import Interleaved
from shardwright.dataflow.schedules import (
    BACKWARD,
    FORWARD,
    Action,
    Schedule,
    make_schedule,
)
from shardwright.planner.choice.configuration import Configuration
from shardwright.solver.linear_program import Job, path_mixture

_MOST_ACTIONS = 1024  # above this the bubble is small, and its linear program takes long
_MORE = 0.02  # communication, as a share of computation, for which the mixture is chosen


@dataclass(frozen=True)
class PassRates:
    """A bound of a step by what all stages take for a micro-batch: both numbers are factors.

    Parameters
    ----------
    computation : float
        Of the seconds of computation.
    rest : float
        Of the others.
    """

    computation: float
    rest: float


@dataclass(frozen=True)
class Halves:
    """What one device computes of both halves of a pass.

    Parameters
    ----------
    seconds : float
        Of all blocks, of what runs for each micro-batch, for the whole batch at once.
    forward, backward : float
        The least shares of the forward and of the backward pass in the computation of any block.
    """

    seconds: float = 0.0
    forward: float = 0.0
    backward: float = 0.0

    def step(self, configuration: Configuration, devices: int, pass_seconds: float) -> float:
        """Return a bound of the step of a pipeline whose groups run several stages.

        Parameters
        ----------
        configuration : Configuration
            The pipeline; its cuts are between the blocks.
        devices : int
            Number of devices of a group.
        pass_seconds : float
            A bound of what all stages take for a micro-batch.

        Returns
        -------
        float
            The bound; 0 where there is no such schedule, or it has too many segments.
        """
        one = configuration
        is_known = one.chunks > 1 and one.schedule == Interleaved.name  # others may be shorter
        exists = is_known and one.micro_batches % one.stages == 0 and self.seconds > 0
        if not exists or 2 * one.parts * one.micro_batches > _MOST_ACTIONS:
            return 0.0
        rates = _rates(one.stages, one.chunks, one.micro_batches, self.forward, self.backward)
        computation = self.seconds / (devices * one.micro_batches)
        rest = max(pass_seconds - computation, 0.0)
        return rates.computation * computation + rates.rest * rest


@lru_cache(maxsize=1024)
def _rates(groups: int, chunks: int, count: int, forward: float, backward: float) -> PassRates:
    """Return the factors of a schedule."""
    schedule = make_schedule(Interleaved.name, groups, chunks, count)
    order = schedule.order
    passed = path_mixture(
        _jobs(schedule, order, forward, backward), *_known(schedule, forward + backward)
    )
    found = {segment: 0.0 for segment in schedule.segments}
    for action, times in zip(order, passed[:-1], strict=True):
        found[action.segment] += float(times)
    pairs = [(found[s, FORWARD], found[s, BACKWARD]) for s in range(schedule.stages)]
    free = 1 - forward - backward
    least = min(forward * f + backward * b + free * min(f, b) for f, b in pairs)
    return PassRates(least, min(min(pair) for pair in pairs))


def _jobs(
    schedule: Schedule, order: tuple[Action, ...], forward: float, backward: float
) -> list[Job]:
    """Return the actions of a schedule, and its end.

    Of each stage, the variables are what it computes, and what its segments take besides.
    """
    number = {action: place for place, action in enumerate(order)}
    last: dict[int, int] = {}
    jobs = []
    for place, action in enumerate(order):
        stage, part, micro_batch = action
        group, before = schedule.group_of(stage), stage - 1 if part == FORWARD else stage + 1
        after = {last.get(group), number.get(Action(before, part, micro_batch))} - {None}
        last[group] = place
        share = forward if part == FORWARD else backward
        beside = (1 if part == FORWARD else 2) * schedule.stages + stage
        jobs.append(
            Job(tuple(sorted(one for one in after if one is not None)), {stage: share, beside: 1.0})
        )
    return [*jobs, Job(tuple(last.values()), {})]


def _known(schedule: Schedule, shares: float) -> tuple[int, list[dict[int, float]]]:
    """Return the number of variables of the jobs, and what is known of them, for computation 1."""
    stages = range(schedule.stages)
    forward, backward = ([(i * schedule.stages + s) for s in stages] for i in (1, 2))
    free = 1 - shares
    of_stages = [
        {s: -free, f: 1.0, b: 1.0} for s, f, b in zip(stages, forward, backward, strict=True)
    ]
    computation = {-1: 1.0, **dict.fromkeys(stages, 1.0)}
    beside = {-1: free + _MORE, **dict.fromkeys((*forward, *backward), 1.0)}
    return 3 * schedule.stages, [*of_stages, computation, beside]
