"""Memory of the gradient of one operator: tensors saved for backward, and transient ones.

All numbers are lower bounds: a tensor that may share its buffer with another is not counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.graph import Node, Value
from shardwright.ir.reachability import live
from shardwright.operators.views import buffer_roots, buffers_of
from shardwright.operators.windows.halo_exchange import SplitGradient, SplitOperator

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BackwardMemory:
    """Lower bound on the memory of the gradient of one operator on a rank, for each strategy.

    Parameters
    ----------
    operands, results : tuple of (array of shape (strategies,))
        Bytes of each operand and result saved for backward; 0 if it is not saved.
    work : tuple of tuple of Moment
        Live tensors at each node of the gradient, for each strategy.
    separate : tuple of bool
        For each operand, whether its gradient is a buffer of its own: no view, not the cotangent
        itself, and not the gradient of another operand.
    kept : tuple of (array of shape (strategies,)), optional
        Bytes that the gradient of a form saves alone: of the result of the operator, and of further
        results. None where there are no forms.
    """

    operands: tuple[Floats, ...]
    results: tuple[Floats, ...]
    work: tuple[tuple["Moment", ...], ...]
    separate: tuple[bool, ...]
    kept: tuple[Floats, Floats] | None = None

    @classmethod
    def none(cls, operands: int, results: int, strategies: int) -> "BackwardMemory":
        """Return zeros, for an operator with an unknown gradient."""
        zero = np.zeros(strategies)
        work = ((),) * strategies
        return cls((zero,) * operands, (zero,) * results, work, (False,) * operands)

    def times(self, count: int) -> "BackwardMemory":
        """Return the memory of as many copies of the strategies."""
        kept = self.kept
        return BackwardMemory(
            tuple(np.tile(saved, count) for saved in self.operands),
            tuple(np.tile(saved, count) for saved in self.results),
            self.work * count,
            self.separate,
            kept and (np.tile(kept[0], count), np.tile(kept[1], count)),
        )

    def and_again(self, strategies: Sequence[int]) -> "BackwardMemory":
        """Return the memory of the strategies, and of second copies of some."""
        some = list(strategies)

        def longer(usage: Floats) -> Floats:
            return np.concatenate([usage, usage[some]])

        return BackwardMemory(
            tuple(map(longer, self.operands)),
            tuple(map(longer, self.results)),
            (*self.work, *(self.work[i] for i in some)),
            self.separate,
            self.kept and (longer(self.kept[0]), longer(self.kept[1])),
        )

    def peak(self, ending: frozenset[int]) -> Floats:
        """Return the peak bytes while the gradient runs, for each strategy.

        Parameters
        ----------
        ending : frozenset of int
            Saved tensors that are freed here and counted: positions among operands, then results.
        """
        saved = (*self.operands, *self.results)
        return np.array(
            [
                max(
                    (
                        moment.transient_bytes
                        + sum(saved[i][strategy] for i in moment.saved & ending)
                        for moment in moments
                    ),
                    default=0.0,
                )
                for strategy, moments in enumerate(self.work)
            ]
        )


@dataclass(frozen=True)
class Moment:
    """The live tensors while one node of a gradient runs.

    Parameters
    ----------
    transient_bytes : float
        Cotangents, gradients and intermediate tensors.
    saved : frozenset of int
        Saved tensors that this node or a later one reads: positions among the operands of the
        differentiated operator, then its results.
    """

    transient_bytes: float
    saved: frozenset[int]


@dataclass(frozen=True)
class Work:
    """The memory of an emitted gradient; see `BackwardMemory`."""

    moments: tuple[Moment, ...]
    separate: tuple[bool, ...]


T = TypeVar("T")


class Turn(NamedTuple, Generic[T]):
    """The buffers that one node of a gradient changes.

    Parameters
    ----------
    made, freed : sequence of tensors
        What is allocated before it runs, and freed after it.
    saved : frozenset of int
        As in `Moment`.
    """

    made: Sequence[T]
    freed: Sequence[T]
    saved: frozenset[int]


@dataclass(frozen=True)
class GradientWork:
    """The buffers of an emitted gradient.

    Parameters
    ----------
    cotangents : sequence of Value
        Those that count.
    turns : mapping of str to Turn of Value
        The changes at each node, by its name.
    separate : tuple of bool
        As in `BackwardMemory`.
    """

    cotangents: Sequence[Value]
    turns: Mapping[str, Turn[Value]]
    separate: tuple[bool, ...]


def work_of(split: SplitOperator, gradient: SplitGradient, wanted: Sequence[bool]) -> GradientWork:
    """Return the buffers of the gradient of an emitted operator.

    Halo exchanges around the gradient are not counted. Neither are cotangents of scalars, and of
    operators with several results, which may lack some.

    Parameters
    ----------
    split : SplitOperator
        The emitted operator.
    gradient : SplitGradient
        Its gradient as it was emitted.
    wanted : sequence of bool
        For each operand, whether its gradient is wanted.
    """
    cotangents = gradient.cotangents
    gradients = [v if want else None for v, want in zip(gradient.returned, wanted, strict=True)]
    ends = [value.name for value in gradients if value is not None]
    nodes = live(gradient.nodes, ends).nodes
    roots = buffer_roots(nodes)
    made = {r.name for node in nodes for r in node.results if r.name not in roots}
    counted = cotangents if len(cotangents) == 1 and cotangents[0].type.rank else ()
    readers = Counter(roots.get(name, name) for name in ends)
    separate = tuple(
        v is not None and (root := roots.get(v.name, v.name)) in made and readers[root] == 1
        for v in gradients
    )
    names = [value.name for value in (*split.read, *split.made)]
    return GradientWork(counted, _turns(nodes, counted, names, ends, roots), separate)


def _turns(
    nodes: Sequence[Node],
    cotangents: Sequence[Value],
    given: Sequence[str],
    ends: Sequence[str],
    roots: dict[str, str],
) -> dict[str, Turn[Value]]:
    """Return the changes at each node, of cotangents and intermediate tensors, by its name."""
    own = {node.name: [r for r in node.results if r.name not in roots] for node in nodes}
    counted = {value.name: value for value in cotangents}
    counted |= {result.name: result for results in own.values() for result in results}
    last = {roots.get(name, name): i for i, node in enumerate(nodes) for name in node.operands}
    reads = {name: last[name] for name in given if name in last}
    last |= {roots.get(name, name): len(nodes) for name in ends}
    turns = {}
    for i, node in enumerate(nodes):
        touched = [name for name in buffers_of(node, roots) if last.get(name, i) == i]
        freed = [counted[name] for name in touched if name in counted]
        alive = frozenset(p for p, name in enumerate(given) if reads.get(name, -1) >= i)
        turns[node.name] = Turn(own[node.name], freed, alive)
    return turns
