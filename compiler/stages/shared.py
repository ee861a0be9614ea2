"""What the pipelines of one program share, whatever their numbers of stages and chunks."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.profile import CostProfile
from shardwright.dataflow.micro_batches import MicroBatches, micro_batches, one_pass
from shardwright.dataflow.stretches import Line
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.planner.plan.blocks import Blocks
from shardwright.search.space.interning import Interner
from shardwright.solver.problem import Identity

T = TypeVar("T")
_KEPT = 3  # entries that are kept of each kind


@dataclass(frozen=True)
class SharedTables:
    """What the stage problems on one mesh, in one number of micro-batches, share.

    Parameters
    ----------
    profile : CostProfile
        The costs, with the tables of operators that are priced.
    interners : dict
        The tables of edges and parameters, by what the problems choose.
    """

    profile: CostProfile
    interners: dict[Hashable, Interner] = field(default_factory=dict)


@dataclass(eq=False)
class SharedParts:
    """What searches for pipelines share whose options differ in mesh, stages and passes alone."""

    _known: dict[str, OrderedDict[Hashable, object]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type["SharedParts"], tuple[()]]:
        """Return nothing of it to another process, which makes what it needs."""
        return SharedParts, ()

    def line(self, source: Graph) -> Line:
        """Return the operators of a program in the order in which they are cut."""
        return self._one("line", Identity(source), lambda: Line(source))

    def loop(self, source: Graph, passes: int) -> MicroBatches:
        """Return a program in micro-batches."""

        def make() -> MicroBatches:
            return one_pass(source) if passes == 1 else micro_batches(source, passes)

        return self._one("loop", (Identity(source), passes), make)

    def blocks(self, source: Graph, others: Hashable, make: Callable[[], Blocks]) -> Blocks:
        """Return the blocks of a program, which depend on others too."""
        return self._one("blocks", (Identity(source), others), make)

    def tables(
        self, mesh: Mesh, passes: int, cluster: Cluster, profile: Callable[[], CostProfile]
    ) -> SharedTables:
        """Return the tables of stages on a mesh; `profile` returns their costs at the first."""
        return self._one("tables", (mesh, passes, cluster), lambda: SharedTables(profile()))

    def _one(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object of a key; the last few are kept."""
        known = self._known.setdefault(kind, OrderedDict())
        found = known.pop(key, None)
        found = make() if found is None else found
        known[key] = found
        while len(known) > _KEPT:
            known.popitem(last=False)
        return found  # type: ignore[return-value]
