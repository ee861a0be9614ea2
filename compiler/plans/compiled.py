"""What a compilation returns: the program, its plan, its costs, and the graphs of all passes."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.passes.manager import PassManager
from shardwright.planner.choice.trace import SearchTrace
from shardwright.search.method import SearchResult


@dataclass(frozen=True)
class Compiled:
    """A compiled program, with its plan, costs and graphs.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    program : Graph
        The training step that every rank runs.
    mesh : Mesh
        The ranks.
    decisions : Decisions or None
        The decisions of the search; None in modes without one.
    result : SearchResult or None
        Their cost and lower bound.
    pin_prices : mapping of str to float
        The price of each pin, in the unit of the profile.
    step_seconds : float
        The serial step: the sum of the predicted seconds of all nodes.
    memory : MemoryUseReport
        The peak memory of a rank.
    buckets : str
        How gradients are reduced together, in words.
    minimizes_step : bool
        Whether the cost of the result is the overlapped step.
    seconds : float
        Wall time of the compilation.
    passes : PassManager
        The graph after every pass.
    trace : SearchTrace or None
        The account of the search over configurations, where there was one.
    """

    source: Graph
    program: Graph
    mesh: Mesh
    decisions: Decisions | None
    result: SearchResult | None
    pin_prices: Mapping[str, float]
    step_seconds: float
    memory: MemoryUseReport
    buckets: str
    minimizes_step: bool
    seconds: float
    passes: PassManager
    trace: SearchTrace | None = None

    @property
    def cost(self) -> float:
        """What programs of one model are compared by: the cost of the plan, or the serial step."""
        return self.step_seconds if self.result is None else self.result.cost

    def __repr__(self) -> str:
        return (
            f"<Compiled {self.source.name} on {self.mesh}: {len(self.program)} nodes, "
            f"{seconds_text(self.step_seconds)}, {bytes_text(self.memory.peak_bytes)}>"
        )
