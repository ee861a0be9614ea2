"""Memory of the gradient of one operator: tensors saved for backward, and transient ones.

All numbers are lower bounds: a tensor that may share its buffer with another is not counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.buffers import workspaces
from shardwright.cost_model.roofline import value_bytes
from shardwright.ir.graph import Node, Value
from shardwright.ir.mesh import Mesh
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


def work_of(
    split: SplitOperator, gradient: SplitGradient, wanted: Sequence[bool], mesh: Mesh
) -> Work:
    """Return the memory of the gradient of an emitted operator.

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
    mesh : Mesh
        The mesh.
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
    given = (*split.read, *split.made)
    values = {value.name: value for value in (*given, *cotangents)}
    values |= {result.name: result for node in nodes for result in node.results}
    working = workspaces(nodes, values, mesh)
    names = [value.name for value in given]
    return Work(_moments(nodes, counted, names, ends, roots, mesh, working), separate)


def _moments(
    nodes: Sequence[Node],
    cotangents: Sequence[Value],
    given: Sequence[str],
    ends: Sequence[str],
    roots: dict[str, str],
    mesh: Mesh,
    working: Mapping[str, float],
) -> tuple[Moment, ...]:
    """Return the live tensors at each node: cotangents, intermediates and saved tensors.

    `working` are the bytes that a node holds beside them while it runs.
    """
    made = [result for node in nodes for result in node.results if result.name not in roots]
    sizes = {value.name: value_bytes(value, mesh) for value in (*cotangents, *made)}
    last = {roots.get(name, name): i for i, node in enumerate(nodes) for name in node.operands}
    reads = {name: last[name] for name in given if name in last}
    last |= {roots.get(name, name): len(nodes) for name in ends}
    now, found = sum(sizes[value.name] for value in cotangents), []
    for i, node in enumerate(nodes):
        now += sum(sizes.get(result.name, 0.0) for result in node.results)
        work = working.get(node.name, 0.0)
        alive = frozenset(p for p, name in enumerate(given) if reads.get(name, -1) >= i)
        found.append(Moment(now + work, alive))
        for name in buffers_of(node, roots):
            if last.get(name, i) == i:
                now -= sizes.get(name, 0.0)
    return tuple(found)
