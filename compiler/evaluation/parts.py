"""The parts of a model, and what they take at least on some ranks, for bounds of plans.

The parts are its layers, what is before all of them, and what is after. What a pass over them
computes and waits for, the elements that they train and what they save for the gradient are those
of a program of tensor and expert ranks, of one micro-batch size (`measured_parts`); data ranks and
stages add to it. `compiler.evaluation.plan_bounds` puts them together to bounds of plans of any
degrees.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import NamedTuple, TypeVar

from shardwright.compiler.evaluation.times import Times
from shardwright.cost_model.pipelines.beside import Lane, seconds_beside
from shardwright.dataflow.placement import even_sizes
from shardwright.dataflow.schedules import Schedule
from shardwright.ir.mesh import StageMap
from shardwright.search.plan_dimensions import Held

# What a program of fewer samples holds of the share of a larger micro-batch, where its layouts are
# others: of four models on three devices only a mixture on one of a thousandth of the speed has
# other ones, and holds 0.928 of it. The distance of this number from 1 is twice that; at half of it
# that program is at the bound, and at twice as much some ten plans more are priced by their own.
_OTHER_LAYOUTS = 0.85
P = TypeVar("P")
Peaks = tuple[float, ...]
"""Without what ZeRO-3 gathers, with dense weights, with those of experts, and with both."""
Lanes = tuple[tuple[Lane, ...], tuple[Lane, ...]]
"""The tasks of layers, forward and backward, each in the order in which it runs them."""
T = TypeVar("T")


class Kind(NamedTuple):
    """What bounds tell trained parameters apart by.

    Parameters
    ----------
    of_experts : bool
        Whether experts have it.
    held : tuple of Held
        How it is held by each stage of ZeRO.
    is_read_again : bool
        Whether the backward pass reads the copies that the forward pass reads.
    is_stored_elsewhere : bool
        Whether another part stores it: in a stage of its own, the part is given a copy.
    """

    of_experts: bool
    held: tuple[Held, ...]
    is_read_again: bool
    is_stored_elsewhere: bool = False


@dataclass(frozen=True)
class Part:
    """What a part takes on a rank, for a micro-batch.

    Parameters
    ----------
    forward, backward, weights : Times
        What a pass runs in line; of the backward pass apart what no earlier part waits for.
    added : Times
        What adds the gradients of a pass to those of the passes before, on a rank that accumulates
        them whole, as far as no earlier part waits for it; of any number of samples the same.
    elements : mapping of Kind to float
        Trained elements.
    saved : float
        Bytes that are saved for the gradient.
    peak : Peaks
        Bytes of what it makes in a pass that are live at once in its backward pass, at most.
    late : float
        Bytes of that which gradients of weights read, where they are put off.
    early : Peaks
        As ``peak``, without gradients of weights, which are put off.
    frozen : float
        Bytes of parameters that are not trained.
    received : (float, float)
        Bytes that it reads forward of the layer before it, and backward of the one behind it; 0
        where there is none.
    lanes : Lanes, optional
        The tasks of its passes, where a software runs passes beside each other; None where they are
        not known, as of a share of a micro-batch.
    """

    forward: Times
    backward: Times
    weights: Times
    added: Times
    elements: Mapping[Kind, float] = field(hash=False)
    saved: float
    peak: Peaks
    late: float
    early: Peaks
    frozen: float
    received: tuple[float, float]
    lanes: Lanes | None = field(default=None, hash=False)

    def least(self, other: "Part") -> "Part":
        """Return the smaller ones of both."""
        return Part(
            self.forward.least(other.forward),
            self.backward.least(other.backward),
            self.weights.least(other.weights),
            self.added.least(other.added),
            _of_both(min, self.elements, other.elements),
            min(self.saved, other.saved),
            tuple(map(min, self.peak, other.peak)),
            min(self.late, other.late),
            tuple(map(min, self.early, other.early)),
            min(self.frozen, other.frozen),
            (
                _least_known(self.received[0], other.received[0]),
                _least_known(self.received[1], other.received[1]),
            ),
            self.lanes if self.lanes == other.lanes else None,
        )

    def of_samples(self, share: float) -> "Part":
        """Return what a share of the samples of a micro-batch takes, at least.

        No operator and no collective takes less time, or less memory, for each sample in a smaller
        micro-batch. The layouts of its program may be others, which hold less (`_OTHER_LAYOUTS`).
        """
        held = share * _OTHER_LAYOUTS
        return Part(
            self.forward.times(share),
            self.backward.times(share),
            self.weights.times(share),
            self.added,
            self.elements,
            held * self.saved,
            tuple(held * peak for peak in self.peak),
            held * self.late,
            tuple(held * peak for peak in self.early),
            self.frozen,
            (held * self.received[0], held * self.received[1]),
        )

    def then(self, other: "Part") -> "Part":
        """Return what both take, one after the other: the other one goes backward first."""
        return Part(
            self.forward.then(other.forward),
            self.backward.then(other.backward),
            self.weights.then(other.weights),
            self.added.then(other.added),
            _of_both(add, self.elements, other.elements),
            self.saved + other.saved,
            _in_turn(self.peak, other.peak, 0.0, self.saved),
            self.late + other.late,
            _in_turn(self.early, other.early, other.late, self.saved),
            self.frozen + other.frozen,
            (self.received[0], other.received[1]),
            _in_order(self.lanes, other.lanes),
        )


def _in_order(one: Lanes | None, two: Lanes | None) -> Lanes | None:
    """Return the tasks of two parts: the backward pass of the second comes first."""
    return None if one is None or two is None else (one[0] + two[0], two[1] + one[1])


def _in_turn(own: Peaks, other: Peaks, late: float, saved: float) -> Peaks:
    """Return the peaks of two parts, of which the first holds what it saved while the other runs.

    What gradients of weights of the other one read is held while the first runs.
    """
    return tuple(max(one + late, saved + two) for one, two in zip(own, other, strict=True))


def _least_known(one: float, other: float) -> float:
    return min(one, other) or max(one, other)


def _of_both(
    combine: Callable[[float, float], float], one: Mapping[Kind, float], other: Mapping[Kind, float]
) -> Mapping[Kind, float]:
    return {kind: combine(one.get(kind, 0.0), other.get(kind, 0.0)) for kind in {**one, **other}}


@dataclass(frozen=True)
class Stage:
    """What the parts of a stage take on a rank, for a micro-batch.

    Parameters
    ----------
    layers : Part
        Its layers.
    whole : Part
        They, and what is before or after all layers where it has that.
    """

    layers: Part
    whole: Part


@dataclass(frozen=True)
class HeldByGroup:
    """What the stages of a device group hold on a rank.

    Parameters
    ----------
    elements : mapping of Kind to float
        Trained elements.
    saved, frozen : float
        Bytes that are saved of a micro-batch for the gradient, and of weights that are not trained.
    """

    elements: Mapping[Kind, float] = field(hash=False)
    saved: float
    frozen: float

    @classmethod
    def of(cls, parts: Sequence[Part]) -> "HeldByGroup":
        """Return what some parts hold together."""
        elements = reduce(partial(_of_both, add), (part.elements for part in parts))
        return cls(elements, sum(part.saved for part in parts), sum(part.frozen for part in parts))


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a model.

    Parameters
    ----------
    layers : tuple of Part
        What each of its layers takes, at least.
    first, last : Part
        What is before all layers, and after.
    saved : dict of (Schedule, int) to (sequence of float)
        Bytes that device groups have saved and made at once, as far as they are known, by which of
        `Peaks` they have.
    """

    layers: tuple[Part, ...]
    first: Part
    last: Part
    saved: dict[tuple[Schedule, int], Sequence[float]] = field(default_factory=dict)
    _divided: dict[int, tuple[Stage, ...]] = field(default_factory=dict)
    _beside: dict[tuple[int, int], float] = field(default_factory=dict)
    _on_groups: dict[tuple[StageMap, int], tuple[HeldByGroup, ...]] = field(default_factory=dict)

    def of_samples(self, share: float) -> "Parts":
        """Return what a share of the samples of a micro-batch takes, at least."""
        scaled = {part: part.of_samples(share) for part in {*self.layers}}
        ends = self.first.of_samples(share), self.last.of_samples(share)
        return Parts(tuple(scaled[part] for part in self.layers), *ends)

    def in_stages(self, count: int) -> tuple[Stage, ...]:
        """Return the stages of a plan with so many of them."""
        if count not in self._divided:
            self._divided[count] = tuple(self._stages(count))
        return self._divided[count]

    def beside(self, one: Part, other: Part) -> float | None:
        """Return what the forward pass of a stage and the backward pass of another take together.

        They run beside each other, and are of a number of stages (`in_stages`); None where their
        tasks are not known.
        """
        if one.lanes is None or other.lanes is None:
            return None
        key = id(one), id(other)
        if key not in self._beside:
            forward, backward = (tuple(chain(*x)) for x in (one.lanes[0], other.lanes[1]))
            self._beside[key] = seconds_beside(forward, backward)
        return self._beside[key]

    def on_groups(self, schedule: Schedule) -> tuple[HeldByGroup, ...]:
        """Return what device groups hold; one object for groups of the same stages."""
        key = schedule.stage_map, schedule.stages
        if key not in self._on_groups:
            stages, known = self.in_stages(schedule.stages), dict[tuple[int, ...], HeldByGroup]()
            found = []
            for group in range(schedule.groups):
                parts = [stages[number].whole for number in schedule.stages_on(group)]
                same = tuple(sorted(map(id, parts)))
                if same not in known:
                    known[same] = HeldByGroup.of(parts)
                found.append(known[same])
            self._on_groups[key] = tuple(found)
        return self._on_groups[key]

    def _stages(self, count: int) -> Iterator[Stage]:
        end, known = 0, dict[tuple[int, ...], Part]()  # stages of equal layers are one object
        for number, size in enumerate(even_sizes(len(self.layers), count)):
            begin, end = end, end + size
            own = self.layers[begin:end]
            key = tuple(map(id, own))
            if key not in known:
                known[key] = reduce(Part.then, own)
            layers = known[key]
            whole = layers if number else self.first.then(layers)
            yield Stage(layers, whole.then(self.last) if number == count - 1 else whole)


def of_each(parts: Sequence[P], of: Callable[[P], T]) -> list[T]:
    """Return what parts have; those of equal stages are one object."""
    known: dict[int, T] = {}
    for part in parts:
        if id(part) not in known:
            known[id(part)] = of(part)
    return [known[id(part)] for part in parts]
