"""Bytes of trained elements: what a rank stores of them between and in steps."""

from dataclasses import dataclass

from shardwright.dataflow.update_rules import mean_state_bytes
from shardwright.ir.graph import Graph
from shardwright.ir.types import item_bytes
from shardwright.operators.models.precision import MASTER, PRECISIONS
from shardwright.planner.options import CompileOptions

_IN_ALL, _ONE_COPY = 3, (1, 2)  # ZeRO stages: gathered in every pass; once, and kept


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
        Its gradient.
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

    @property
    def total(self) -> float:
        """All that are stored."""
        return float(self.master + self.states + self.gradient + self.lower)

    @property
    def gathered(self) -> float:
        """What is gathered over data ranks: the element in the type that is computed in."""
        return self.lower or self.master

    def on_rank(
        self, elements: float, zero: int, ranks: int, passes: int, at_once: float
    ) -> dict[str, float]:
        """Return the bytes of parameters, states and gradients that last, by kind.

        Parameters
        ----------
        elements : float
            Trained elements on a rank without ZeRO.
        zero : int
            The ZeRO stage.
        ranks : int
            Data ranks over which it divides.
        passes : int
            Number of micro-batches; gradients of one alone are not accumulated.
        at_once : float
            Elements whose gradients are held at once then.
        """
        divided = elements / (ranks if zero else 1)
        copies = self.gathered if zero in _ONE_COPY else self.lower
        graded = min(elements, at_once) if passes == 1 and not zero else elements
        shared = zero > 1 or (zero == 1 and passes == 1)
        return {
            "parameters": self.master * divided
            + copies * (divided if zero == _IN_ALL else elements),
            "optimizer states": self.states * divided,
            "gradients": self.gradient * graded / (ranks if shared else 1),
        }
