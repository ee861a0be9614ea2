"""The programs of plans: searches by several weights often find the same plan.

Weights decide the paths of redistributions alone, so what comes before they are lowered is emitted
once for equal decisions, and what comes after once for equal paths. Of a model that repeats its
layers few go through the passes (`tiles`), and all of them for the plan that is taken.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isclose

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.profiles import PROFILES
from shardwright.dataflow.update_rules import rules_within
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph
from shardwright.passes.annotate import Annotate
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.clean_up import CleanUp
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager, PassRecord
from shardwright.planner.evaluation.lengthening import NotRepeatedError
from shardwright.planner.evaluation.tiles import Shortened, shortened
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned


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
        What the passes recorded; those before the clean-up may be of a model with few layers.
    """

    decisions: Decisions
    program: Graph
    memory: MemoryUseReport
    records: tuple[PassRecord, ...]

    def forget(self) -> None:
        """Forget what was found out about the program, and about those that passes made before."""
        for graph in (self.program, *(record.graph for record in self.records)):
            graph.forget()


@dataclass
class Programs:
    """The programs of plans for one source, with the same options.

    Parameters
    ----------
    known : deque of EmittedPlan
        The last plans.
    """

    known: deque[EmittedPlan] = field(default_factory=lambda: deque(maxlen=4))

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
        few = None
        alone = bool(options.extra_passes) or options.named_plan is not None
        if not alone and PROFILES[options.cost_model].priced_after == CleanUp.name:
            few = shortened(source, decisions, options.optimizer.overrides)
        if few is not None:
            with suppress(NotRepeatedError):
                return self._emit(source, options, decisions, lowering, few)
        return self._emit(source, options, decisions, lowering)

    def _emit(
        self,
        source: Graph,
        options: CompileOptions,
        decisions: Decisions,
        lowering: LowerRedistributions,
        few: Shortened | None = None,
    ) -> EmittedPlan:
        passes = PassManager(verify_later=not options.extra_passes)
        model, plan = source, decisions
        if few is not None:
            model, plan = few.graph, few.decisions
        options = replace(options, optimizer=rules_within(options.optimizer, model))
        pipeline = partitioned(options, plan, lowering)
        at, end = pipeline.index(lowering), pipeline.index(CleanUp()) + 1
        equal = [] if options.extra_passes else self._of(decisions)
        if equal:
            passes.records += equal[0].records[:at]
            split = equal[0].records[at].before
        else:
            split = passes.run_all(pipeline[:at], model)
        lowered = passes.run(lowering, split)
        for other in equal:
            record = other.records[at]
            if record.graph == lowered:
                passes.records[at] = replace(passes.records[at], graph=record.graph)
                records = (*passes.records, *other.records[at + 1 :])
                return replace(other, records=records)
        clean = passes.run_all(pipeline[at + 1 : end], lowered)
        if few is not None:
            clean = few.lengthened(clean)
            passes.records[-1] = replace(passes.records[-1], graph=clean)
        program = passes.run_all(pipeline[end:], clean)
        found = EmittedPlan(decisions, program, peak_memory(program), tuple(passes.records))
        self.known.append(found)
        return found

    def _of(self, decisions: Decisions) -> list[EmittedPlan]:
        return [plan for plan in self.known if plan.decisions == decisions]


def of_all_layers(source: Graph, options: CompileOptions, known: EmittedPlan) -> EmittedPlan:
    """Return a plan with the program that the passes of its records make of the whole model.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    options : CompileOptions
        How to compile.
    known : EmittedPlan
        The plan, with a program maybe of a model with few layers.

    Raises
    ------
    PassError
        If the two programs take other memory, or have other operators.
    """
    if known.records[0].before is source:
        return known
    first, *others = (record.work for record in known.records)
    assert isinstance(first, Annotate)
    works = (
        AppendOptimizer.of(options.optimizer, options.loss_scale)
        if isinstance(work, AppendOptimizer)
        else work
        for work in others
    )
    passes = PassManager(verify_later=not options.extra_passes)
    program = passes.run_all((Annotate(known.decisions), *works), source)
    memory = peak_memory(program)
    here, there = memory.peak_bytes, known.memory.peak_bytes
    if len(program) != len(known.program) or not isclose(here, there):
        raise PassError(
            f"the program of all layers has {len(program)} operators and takes {here:.0f} bytes, "
            f"that of few layers with copies {len(known.program)} and {there:.0f}"
        )
    return EmittedPlan(known.decisions, program, memory, tuple(passes.records))
