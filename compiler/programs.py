"""The programs of plans: searches by several weights often find the same plan.

Weights decide the paths of redistributions alone, so what comes before they are lowered is emitted
once for equal decisions, and what comes after once for equal paths.
"""

from dataclasses import dataclass, field, replace

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager, PassRecord
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned

_KEPT = 4  # programs that are kept, the last ones


@dataclass(frozen=True)
class EmittedPlan:
    """A plan and its program.

    Parameters
    ----------
    decisions : Decisions
        The plan.
    program : Graph
        The program.
    memory : MemoryUseReport
        Peak memory of the program on a rank.
    records : tuple of PassRecord
        What the passes recorded.
    """

    decisions: Decisions
    program: Graph
    memory: MemoryUseReport
    records: tuple[PassRecord, ...]


@dataclass
class Programs:
    """The programs of plans for one source, with the same options.

    Parameters
    ----------
    known : list of EmittedPlan
        The last plans.
    """

    known: list[EmittedPlan] = field(default_factory=list)

    def emit(
        self,
        source: Graph,
        options: CompileOptions,
        decisions: Decisions,
        lowering: LowerRedistributions,
    ) -> EmittedPlan:
        """Return a plan with its program; the same one for the same program.

        Parameters
        ----------
        source : Graph
            The whole program, in canonical form.
        options : CompileOptions
            How to compile.
        decisions : Decisions
            The plan.
        lowering : LowerRedistributions
            The pass that lowers redistributions to collectives.
        """
        passes = PassManager(verify_later=not options.extra_passes)
        pipeline = partitioned(options, decisions, lowering)
        at = pipeline.index(lowering)
        equal = [] if options.extra_passes else self._of(decisions)
        if equal:
            passes.records += equal[0].records[:at]
            split = equal[0].records[at].before
        else:
            split = passes.run_all(pipeline[:at], source)
        lowered = passes.run(lowering, split)
        for other in equal:
            record = other.records[at]
            if record.graph == lowered:
                passes.records[at] = replace(passes.records[at], graph=record.graph)
                records = (*passes.records, *other.records[at + 1 :])
                return replace(other, records=records)
        program = passes.run_all(pipeline[at + 1 :], lowered)
        found = EmittedPlan(decisions, program, peak_memory(program), tuple(passes.records))
        self.known = [*self.known, found][-_KEPT:]
        return found

    def _of(self, decisions: Decisions) -> list[EmittedPlan]:
        return [plan for plan in self.known if plan.decisions == decisions]
