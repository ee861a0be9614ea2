"""The bytes of a trained element on a rank, by the optimizer and the types."""

from dataclasses import dataclass

from shardwright.dataflow.update_rules import mean_state_bytes
from shardwright.ir.graph import Graph
from shardwright.ir.types import item_bytes
from shardwright.operators.models.precision import MASTER, PRECISIONS
from shardwright.planner.options import CompileOptions


@dataclass(frozen=True)
class StoredBytes:
    """Bytes of a trained element on a rank without ZeRO.

    Parameters
    ----------
    master : float
        The element itself.
    states : float
        The states of the optimizer.
    gradient : float
        Its gradient, where it is accumulated.
    lower : float
        A copy in the type that is computed in; 0 where that is the type of the element.
    reduced : float
        Its gradient while it is reduced over ranks, which is not stored.
    """

    master: float
    states: float
    gradient: float
    lower: float
    reduced: float

    @staticmethod
    def of(options: CompileOptions, graph: Graph) -> "StoredBytes":
        """Return the bytes by the optimizer and the types; of states the mean of a program."""
        master, lower = (item_bytes(t) for t in (MASTER, PRECISIONS[options.precision].compute))
        gradient, reduced = (
            lower if one == "lower" else master
            for one in (options.accumulate_type, options.reduce_type)
        )
        states = mean_state_bytes(options.optimizer, graph)
        return StoredBytes(master, states, gradient, lower if lower < master else 0.0, reduced)
